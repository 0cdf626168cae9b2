"""A node's GPUs behind their ports: NVML, AMD SMI, DCGM, declared power, the actuator and simulated nodes."""
