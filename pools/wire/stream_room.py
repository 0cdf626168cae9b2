"""Bounds streams: producers ask whether there is room, and nothing unread is ever trimmed.

What there is no room for stays with its producer until the consumer has caught up.
"""

from __future__ import annotations

# Entries; about 100 MB of each. An agent's batch has some 2 kB, a gateway's of 500 rows some 200 kB. A node's own
# stream takes five minutes' of batches: what comes then waits on the node's disk.
BATCH_STREAM_MOST = 50_000
NODE_STREAM_MOST = 300
REQUEST_STREAM_MOST = 500

# EVAL with the stream as key, and as arguments how many may be in it and the encoded messages: adds as many of them as
# there is room for, in their order, and returns how many.
ADD_WHILE_ROOM = """
local room = tonumber(ARGV[1]) - redis.call('XLEN', KEYS[1])
local added = math.max(0, math.min(room, #ARGV - 1))
for n = 2, added + 1 do redis.call('XADD', KEYS[1], '*', 'b', ARGV[n]) end
return added
"""
