"""State hosts: the long-lived processes in which keyed state stays warm between batches."""
