"""Makes the modules of `greenserve.client` that follow the REST API: `make client`."""
