"""Records some steps on all ranks: begin and end of each part and of each bucket's all-reduce."""
