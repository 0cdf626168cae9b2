"""The process beside a host's gateways that predicts how long answers will be from prompts' texts; without Django."""
