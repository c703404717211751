"""For each person the hour at which a mail is best sent: learned (`model`), kept, planned and measured."""
