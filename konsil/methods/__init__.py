"""One file a method; each reads like its paper's listing. Found without a list of them."""
