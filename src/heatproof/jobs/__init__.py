"""What jobs run; reads and writes stores."""
