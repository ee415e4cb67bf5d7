/*-------------------------------------------------------------------------
 *
 * rdma.c
 *	  What both ends of a verbs connection set and check at an id: the verbs
 *	  transport, and the donor's verbs service.  See transport/peer.h.
 *
 *-------------------------------------------------------------------------
 */
#include "common/status.h"
#include "transport/peer.h"
#include "transport/transport.h"

#include <errno.h>
#include <rdma/rdma_cma.h>
#include <string.h>

RbpStatus
rbp_verbs_set_options(struct rdma_cm_id *id)
{
	const RbpDeviceConfig *config = rbp_verbs_config();
	uint8_t		ack_timeout = (uint8_t) config->ack_timeout;

	if (config->traffic_class >= 0)
	{
		uint8_t		tos = (uint8_t) config->traffic_class;

		if (rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &tos,
							sizeof(tos)) != 0)
			return errno == ENOMEM ? RBP_NOMEM : RBP_INVALID;
	}

	/* kernels before 5.1 cannot set it, and use their own timeout */
	if (rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT,
						&ack_timeout, sizeof(ack_timeout)) != 0 && errno != ENOSYS)
		return errno == ENOMEM ? RBP_NOMEM : RBP_INVALID;
	return RBP_OK;
}

RbpStatus
rbp_verbs_check_device(struct rdma_cm_id *id)
{
	const RbpDeviceConfig *config = rbp_verbs_config();
	struct ibv_device *device = id->verbs != NULL ? id->verbs->device : NULL;

	if (device != NULL &&
		(device->node_type != IBV_NODE_CA || device->transport_type != IBV_TRANSPORT_IB))
		return RBP_BAD_DEVICE;
	if (config->device[0] != '\0' &&
		(device == NULL || strcmp(ibv_get_device_name(device), config->device) != 0))
		return RBP_OTHER_DEVICE;
	return config->port == 0 || config->port == id->port_num ? RBP_OK : RBP_OTHER_DEVICE;
}
