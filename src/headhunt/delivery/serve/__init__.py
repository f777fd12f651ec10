"""Serve a model over HTTP, on one machine (`serve`) or on a Ray cluster (`ray_serve`)."""

from headhunt.delivery.serve.launch import serve
from headhunt.delivery.serve.limits import Compute, Limits

__all__ = ["Compute", "Limits", "serve"]
