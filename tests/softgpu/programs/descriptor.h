/* descriptor.h - a file descriptor to another process, beside driver.h. */
#ifndef FARBUS_TESTS_SOFTGPU_DESCRIPTOR_H
#define FARBUS_TESTS_SOFTGPU_DESCRIPTOR_H

#include <sys/socket.h>
#include <sys/wait.h>

static inline void send_descriptor(int channel, int fd)
{
	char room[CMSG_SPACE(sizeof fd)] = "", byte = 0;
	struct iovec part = { &byte, 1 };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = room,
				  .msg_controllen = sizeof room };
	struct cmsghdr *header = CMSG_FIRSTHDR(&message);

	header->cmsg_level = SOL_SOCKET;
	header->cmsg_type = SCM_RIGHTS;
	header->cmsg_len = CMSG_LEN(sizeof fd);
	memcpy(CMSG_DATA(header), &fd, sizeof fd);
	REQUIRE(sendmsg(channel, &message, 0) == 1);
}

static inline int receive_descriptor(int channel)
{
	int fd = -1;
	char room[CMSG_SPACE(sizeof fd)], byte;
	struct iovec part = { &byte, 1 };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = room,
				  .msg_controllen = sizeof room };

	REQUIRE(recvmsg(channel, &message, 0) == 1);
	memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
	return fd;
}

#endif
