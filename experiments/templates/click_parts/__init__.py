"""A mode, a model and a reader of one's own: gbactl finds them by the targets in conf/."""
