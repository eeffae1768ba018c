"""What a cell computes, one module for each job: it reads files, calls `singleshot`, and writes files."""
