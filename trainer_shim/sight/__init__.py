"""What is seen of a loop's loss and gradient where nobody reports them."""
