"""`greenserve backup` and `restore`: all that a control plane keeps, in one file with a manifest."""
