/* tls.h - a connected transport made secret and unforgeable: TLS 1.3 with a key that both have.
 *
 *	client				server
 *	ClientHello		->
 *				<-	ServerHello, Finished
 *	Finished		->
 *	records			<->	records
 *
 * OpenSSL does the handshake (RFC 8446): the pre-shared key proves each side to the other,
 * an ephemeral key agreement (psk_dhe_ke) makes the session's keys, so that who learns the
 * pre-shared key later can read nothing of what was recorded.  Its exporter gives a secret
 * for each direction, and it is done with.
 *
 * Records are TLS 1.3's as they stand in the stream: a header of 5 bytes, at most 16 KiB and a
 * type byte under AES-128-GCM, a tag.  They are made here because an SSL object is one
 * thread's at a time, while a session reads and writes at once; because a flush of 256 KiB
 * is then one system call; and because a program that exits may still call CUDA after OpenSSL
 * has torn itself down.  docs/decisions/0013-tls-for-remoting.md
 *
 * What a record says is seen by nobody before its tag was found right.
 */
#ifndef FARBUS_TRANSPORT_TLS_H
#define FARBUS_TRANSPORT_TLS_H

#include "../transport.h"

#define TLS_KEY_BYTES 32u
#define TLS_WHY_BYTES 256u
/* Records under one key, in each direction: 64 GiB in full ones.  RFC 8446, 5.5 allows 2^24.5. */
#define TLS_KEY_RECORDS (1u << 22)

/* Make the handshake over `transport`, within timeout_ms; from then on it goes on encrypted, with
 * the same descriptor.  0, or -errno with one line in `why`, and the transport can only be released:
 * -ENOMSG (a client): the peer answered something that is not TLS, and all of it is yet to be
 * read; -EACCES: the peer has another key, or somebody changed what was said;
 * -EPROTONOSUPPORT: no OpenSSL here, or none any more; -ETIMEDOUT; -EPIPE; other errors of the socket. */
int transport_tls_start(struct transport *transport, const uint8_t key[TLS_KEY_BYTES], bool server,
			int timeout_ms, char why[TLS_WHY_BYTES]);

/* After how many records each direction goes to its next key: for tests, on both sides, at once
 * behind the handshake. */
void transport_tls_set_key_records(struct transport *transport, uint32_t records);

#endif
