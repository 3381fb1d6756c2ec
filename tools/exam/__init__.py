"""An exam: faults that no check was written for, in samplers of its own that are correct otherwise. See `exam.main`."""
