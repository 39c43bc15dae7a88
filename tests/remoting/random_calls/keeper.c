/* A program that gives no memory back: no object has the address of one that was destroyed. */
void free(void *memory)
{
	(void)memory;
}
