"""What `strategy=` chooses: one small class each, behind one base."""
