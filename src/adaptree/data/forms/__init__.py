"""The forms of files, one for each kind of task that is more than a text and a label."""
