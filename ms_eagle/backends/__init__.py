"""What models are made of: stock MindSpore operators anywhere, our own kernels on CPUs, and the choice."""
