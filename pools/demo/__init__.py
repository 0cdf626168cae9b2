"""The demo fleet: FREESH's testbed on simulated nodes, with sign-in and keys of its own. Needs Django set up."""

from .demo_credentials import credentials_path, ensure_demo_credentials
from .demo_fleet import load
from .demo_profile import load_profile
from .demo_rates import load_rates

__all__ = ["credentials_path", "ensure_demo_credentials", "load", "load_profile", "load_rates"]
