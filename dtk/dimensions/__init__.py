"""What `parallel` adds to data parallelism: a file per mesh dimension cuts a model and declares what is sent."""
