"""An exam: faults that no check was written for, planted in right samplers of its own. See `exam.main`."""
