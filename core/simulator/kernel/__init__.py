"""The compiled loop, and the driver that carries commands out in time."""
