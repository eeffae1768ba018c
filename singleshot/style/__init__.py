"""Style transfer for pictures and videos (Shen and Wang), by Gatys et al.'s and Johnson et al.'s methods."""
