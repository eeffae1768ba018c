"""Style transfer of images and videos (Shen and Wang): Gatys, Johnson, and what it takes to use them."""
