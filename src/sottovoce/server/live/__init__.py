"""One live client, whatever protocol it speaks: messages and audio in, events out."""
