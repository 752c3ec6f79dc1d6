"""How far people are with the lessons, kept with their accounts, and the teacher's table of it."""
