"""Real servers on loopback with a tiny random model, and the checks of `fairdraw check URL` on them. See `main`."""
