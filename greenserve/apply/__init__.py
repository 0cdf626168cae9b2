"""`greenserve apply`: a fleet as YAML files, compared with the one that REST shows, and carried out through REST.

`document` reads, `plan` compares values with values, `check` says what is wrong before anything is changed; these do no
I/O. `remote` reads the fleet, `execution` carries a plan out, `export` writes a fleet as a file.
"""
