"""From the order's windows to rows: reading ahead on threads, cutting, shuffling, packing."""
