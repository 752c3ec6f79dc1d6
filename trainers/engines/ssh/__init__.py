"""The SSH engine: runs on a few PCs that are reached by SSH, with or without a shared folder."""
