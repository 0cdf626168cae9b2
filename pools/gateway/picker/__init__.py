"""The endpoint picker: the gateway's decision for fleets whose bytes flow through Envoy (docs/picker.md).

Envoy's ext_proc filter asks over gRPC, as the Kubernetes Gateway API Inference Extension's endpoint picker protocol has
it. Needs the extra `picker`; nothing else in GreenServe imports this package.

messages.py       Envoy's messages, read and written: all that knows protobuf
processing.py     one HTTP request, from its head to its record
picker_server.py  the gRPC service, start and stop
"""
