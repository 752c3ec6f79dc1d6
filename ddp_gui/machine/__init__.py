"""The Machine page: its report and its checks."""
