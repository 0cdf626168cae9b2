"""What a release leaves behind for later ones to prove themselves by: `python -m tests.fakes.release` records it."""
