"""Results that were measured once and are compared with from then on."""
