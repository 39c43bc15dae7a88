/* Which devices the program sees, and in which order. */
#include "visible.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int address_compare(const void *left, const void *right)
{
	const struct client_device *a = left, *b = right;

	for (int i = 0; i < 3; i++)
		if (a->pci[i] != b->pci[i])
			return a->pci[i] < b->pci[i] ? -1 : 1;
	return (int)a->server_ordinal - (int)b->server_ordinal;
}

/* Programs tell devices apart by their PCI addresses, and two servers' may be equal: the
 * later device is shown in the next PCI domain where that address is free. */
static void device_place(struct client *client, struct client_device *device)
{
	int tried = 0;

	for (int i = 0; i < client->device_count && tried <= client->device_count;) {
		if (client->devices[i].session == device->session ||
		    memcmp(client->devices[i].pci, device->pci, sizeof(device->pci)) != 0) {
			i++;
			continue;
		}
		device->pci[0] = (device->pci[0] + 1) & 0xffff;
		tried++;
		i = 0;
	}
	if (!tried)
		return;
	snprintf(device->snapshot.pci_bus_id, sizeof(device->snapshot.pci_bus_id), "%04x:%02x:%02x.0",
		 (unsigned)device->pci[0], (unsigned)device->pci[1] & 0xff,
		 (unsigned)device->pci[2] & 0xff);
	device->snapshot.attributes[CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID] = device->pci[0];
}

int client_devices_number(struct client *client)
{
	const char *order = getenv("CUDA_DEVICE_ORDER");
	bool by_address = order && strcmp(order, "PCI_BUS_ID") == 0;
	int count = 0;

	for (unsigned i = 0; i < client->session_count; i++)
		count += client->sessions[i].device_count;
	client->devices = calloc(count ? (size_t)count : 1, sizeof(*client->devices));
	if (!client->devices)
		return -ENOMEM;
	client->device_count = 0;
	for (unsigned i = 0; i < client->session_count; i++) {
		struct client_session *session = &client->sessions[i];

		if (by_address)
			qsort(session->devices, (size_t)session->device_count,
			      sizeof(*session->devices), address_compare);
		for (int k = 0; k < session->device_count; k++) {
			device_place(client, &session->devices[k]);
			client->devices[client->device_count++] = session->devices[k];
		}
		free(session->devices);
		session->devices = NULL;
	}
	return 0;
}

static bool uuid_matches(const uint8_t uuid[16], const char *text)
{
	char full[48];

	snprintf(full, sizeof(full),
		 "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
		 uuid[0], uuid[1], uuid[2], uuid[3], uuid[4], uuid[5], uuid[6], uuid[7], uuid[8],
		 uuid[9], uuid[10], uuid[11], uuid[12], uuid[13], uuid[14], uuid[15]);
	return strncasecmp(full, text, strlen(text)) == 0;
}

/* Which device an item of CUDA_VISIBLE_DEVICES names, or -1. */
static int visible_device(const struct client *client, const char *item)
{
	char *end;
	long ordinal;

	if (strncmp(item, "GPU-", 4) == 0) {
		for (int i = 0; i < client->device_count; i++)
			if (uuid_matches(client->devices[i].snapshot.uuid, item))
				return i;
		return -1;
	}
	ordinal = strtol(item, &end, 10);
	if (end == item || *end || ordinal < 0 || ordinal >= client->device_count)
		return -1;
	return (int)ordinal;
}

int client_devices_choose(struct client *client)
{
	const char *visible = getenv("CUDA_VISIBLE_DEVICES");
	struct client_device *chosen;
	char *copy, *save = NULL;
	int count = 0;

	if (!visible)
		return 0;
	copy = strdup(visible);
	chosen = calloc((size_t)client->device_count + 1, sizeof(*chosen));
	if (!copy || !chosen) {
		free(copy);
		free(chosen);
		return -ENOMEM;
	}
	for (char *item = strtok_r(copy, ", ", &save); item; item = strtok_r(NULL, ", ", &save)) {
		int index = visible_device(client, item);
		bool twice = false;

		for (int i = 0; i < count; i++)
			twice = twice || (index >= 0 &&
					  chosen[i].session == client->devices[index].session &&
					  chosen[i].server_ordinal ==
						  client->devices[index].server_ordinal);
		if (twice)
			count = 0;
		if (index < 0 || twice)
			break;
		chosen[count++] = client->devices[index];
	}
	free(copy);
	free(client->devices);
	client->devices = chosen;
	client->device_count = count;
	return 0;
}
