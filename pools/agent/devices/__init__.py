"""A node's GPUs behind their ports: NVML, DCGM, declared power, the actuator and simulated nodes."""
