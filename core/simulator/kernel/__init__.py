"""The compiled loop, its reference, and the driver that carries commands out in time."""
