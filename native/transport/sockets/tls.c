#include "openssl.h"
#include "socket.h"
#include "tls.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "../../wire/digest.h"

/* RFC 8446, 5.1 and 5.2 */
#define TLS_HEADER_BYTES 5u
#define TLS_TEXT_BYTES (16u << 10)
#define TLS_TAG_BYTES 16u
#define TLS_SEALED_BYTES (TLS_TEXT_BYTES + 1 + TLS_TAG_BYTES)
#define TLS_RECORD_BYTES (TLS_HEADER_BYTES + TLS_SEALED_BYTES)
#define TLS_HANDSHAKE_RECORD_BYTES (TLS_TEXT_BYTES + 256)
enum { TLS_ALERT = 21, TLS_HANDSHAKE = 22, TLS_DATA = 23 };

/* Records that are sealed, and received, with one system call: they stay in a second-level cache. */
#define TLS_BATCH 8u
/* A handshake without certificates has five or six, of some hundred bytes. */
#define TLS_HANDSHAKE_RECORDS 16
#define TLS_IDENTITY "farbus"
#define TLS_EXPORT_LABEL "EXPORTER-farbus-remoting"
/* TLS_AES_128_GCM_SHA256: the suite that every TLS 1.3 has, and the fastest with AES in the processor. */
#define TLS_SUITE "TLS_AES_128_GCM_SHA256"
static const unsigned char tls_suite_number[] = { 0x13, 0x01 };

#define TLS_NONCE_BYTES 12u

/* One direction: used by one thread at a time. */
struct tls_half {
	EVP_CIPHER_CTX *cipher;
	uint8_t secret[WIRE_DIGEST_BYTES]; /* what this key and the next are made of */
	uint8_t nonce[TLS_NONCE_BYTES];	/* RFC 8446, 5.3: combined with the number */
	uint64_t number;		/* of the next record */
	int error;			/* sticky */
};

struct tls {
	const struct openssl *openssl;
	const struct transport_ops *below;
	uint32_t key_records;
	struct tls_half out;
	struct tls_half in;
	/* What was received lies in [start, end) of `received`; what of it has been opened, and
	 * not yet been read, in [text, text_end), which is before start. */
	size_t start, end, text, text_end;
	uint8_t received[TLS_BATCH * TLS_RECORD_BYTES];
	uint8_t sealed[TLS_BATCH * TLS_RECORD_BYTES];
};

/* ---- keys ---- */

/* Set a direction's cipher up with the key that its secret makes. */
static int half_key(const struct tls *tls, struct tls_half *half, bool seal)
{
	uint8_t key[WIRE_DIGEST_BYTES], nonce[WIRE_DIGEST_BYTES];
	int good;

	wire_hmac(half->secret, "key", NULL, 0, key);
	wire_hmac(half->secret, "nonce", NULL, 0, nonce);
	memcpy(half->nonce, nonce, sizeof(half->nonce));
	good = tls->openssl->EVP_CipherInit_ex(half->cipher, tls->openssl->aes_128_gcm, NULL, key,
					       NULL, seal);
	explicit_bzero(key, sizeof(key));
	explicit_bzero(nonce, sizeof(nonce));
	return good == 1 ? 0 : -EIO;
}

/* Both sides count records, so that no message need say when the key changes.  The secret
 * of the keys before can't be found from the next one. */
static int half_next(const struct tls *tls, struct tls_half *half, bool seal)
{
	uint8_t next[WIRE_DIGEST_BYTES];

	half->number++;
	if (half->number % tls->key_records)
		return 0;
	wire_hmac(half->secret, "next", NULL, 0, next);
	memcpy(half->secret, next, sizeof(next));
	explicit_bzero(next, sizeof(next));
	return half_key(tls, half, seal);
}

/* Begin the next record: its nonce, and its header, which the tag covers too. */
static bool half_begin(const struct tls *tls, const struct tls_half *half,
		       const uint8_t header[TLS_HEADER_BYTES])
{
	uint8_t nonce[TLS_NONCE_BYTES];
	int bytes;

	memcpy(nonce, half->nonce, sizeof(nonce));
	for (int i = 0; i < 8; i++)
		nonce[TLS_NONCE_BYTES - 1 - i] ^= (uint8_t)(half->number >> 8 * i);
	return tls->openssl->EVP_CipherInit_ex(half->cipher, NULL, NULL, NULL, nonce, -1) == 1 &&
	       tls->openssl->EVP_CipherUpdate(half->cipher, NULL, &bytes, header,
					      TLS_HEADER_BYTES) == 1;
}

/* ---- writing ---- */

struct tls_source {
	struct iovec *vector;
	int count;
};

/* Seal the next record of what `source` holds into `at`, and consume that; its size, or -errno. */
static ssize_t tls_seal(struct tls *tls, uint8_t *at, struct tls_source *source)
{
	static const uint8_t type = TLS_DATA;
	uint8_t *text = at + TLS_HEADER_BYTES;
	size_t bytes = 0, sealed;
	int done, rc;

	for (int i = 0; i < source->count && bytes < TLS_TEXT_BYTES; i++)
		bytes += source->vector[i].iov_len;
	if (bytes > TLS_TEXT_BYTES)
		bytes = TLS_TEXT_BYTES;
	sealed = bytes + 1 + TLS_TAG_BYTES;
	at[0] = TLS_DATA;
	at[1] = at[2] = 3;
	at[3] = (uint8_t)(sealed >> 8);
	at[4] = (uint8_t)sealed;
	if (!half_begin(tls, &tls->out, at))
		return -EIO;
	while (bytes) {
		struct iovec *from = source->vector;
		size_t now = from->iov_len < bytes ? from->iov_len : bytes;

		if (now && tls->openssl->EVP_CipherUpdate(tls->out.cipher, text, &done,
							  from->iov_base, (int)now) != 1)
			return -EIO;
		text += now;
		bytes -= now;
		from->iov_base = (char *)from->iov_base + now;
		from->iov_len -= now;
		if (!from->iov_len) {
			source->vector++;
			source->count--;
		}
	}
	if (tls->openssl->EVP_CipherUpdate(tls->out.cipher, text, &done, &type, 1) != 1 ||
	    tls->openssl->EVP_CipherFinal_ex(tls->out.cipher, text + 1, &done) != 1 ||
	    tls->openssl->EVP_CIPHER_CTX_ctrl(tls->out.cipher, EVP_CTRL_AEAD_GET_TAG, TLS_TAG_BYTES,
					      text + 1) != 1)
		return -EIO;
	rc = half_next(tls, &tls->out, true);
	return rc ? rc : (ssize_t)(TLS_HEADER_BYTES + sealed);
}

static bool source_empty(struct tls_source *source)
{
	while (source->count && !source->vector->iov_len) {
		source->vector++;
		source->count--;
	}
	return !source->count;
}

static int tls_write(struct transport *transport, struct iovec *vector, int count)
{
	struct tls *tls = transport->tls;
	struct tls_source source = { vector, count };
	int rc = tls->out.error;

	while (!rc && !source_empty(&source)) {
		struct iovec sealed = { .iov_base = tls->sealed };

		for (unsigned i = 0; i < TLS_BATCH && !source_empty(&source); i++) {
			ssize_t size = tls_seal(tls, tls->sealed + sealed.iov_len, &source);

			if (size < 0) {
				rc = (int)size;
				break;
			}
			sealed.iov_len += (size_t)size;
		}
		if (!rc)
			rc = tls->below->write(transport, &sealed, 1);
	}
	/* Half a record may be on its way: nothing can follow it. */
	tls->out.error = rc;
	return rc;
}

/* ---- reading ---- */

/* The size of the record that begins at `start`, header included; 0 when that is not known
 * yet.  A record that cannot be is -EBADMSG. */
static ssize_t tls_record(const struct tls *tls)
{
	const uint8_t *header = tls->received + tls->start;
	size_t sealed;

	if (tls->end - tls->start < TLS_HEADER_BYTES)
		return 0;
	sealed = (size_t)header[3] << 8 | header[4];
	/* No record is empty: whoever sends such ones wants to keep this side busy. */
	if (header[0] != TLS_DATA || header[1] != 3 || header[2] != 3 ||
	    sealed <= 1 + TLS_TAG_BYTES || sealed > TLS_SEALED_BYTES)
		return -EBADMSG;
	return (ssize_t)(TLS_HEADER_BYTES + sealed);
}

/* Is there a record to open, or is there none that ever can be? */
static bool tls_ready(const struct tls *tls)
{
	ssize_t size = tls_record(tls);

	return size < 0 || (size && tls->end - tls->start >= (size_t)size);
}

/* Open the record at `start`, which is there, in place. */
static int tls_open(struct tls *tls, size_t size)
{
	uint8_t *header = tls->received + tls->start, *sealed = header + TLS_HEADER_BYTES;
	size_t bytes = size - TLS_HEADER_BYTES - TLS_TAG_BYTES;
	int done;

	if (!half_begin(tls, &tls->in, header) ||
	    tls->openssl->EVP_CipherUpdate(tls->in.cipher, sealed, &done, sealed, (int)bytes) != 1 ||
	    tls->openssl->EVP_CIPHER_CTX_ctrl(tls->in.cipher, EVP_CTRL_AEAD_SET_TAG, TLS_TAG_BYTES,
					      sealed + bytes) != 1 ||
	    tls->openssl->EVP_CipherFinal_ex(tls->in.cipher, sealed + bytes, &done) != 1 ||
	    sealed[bytes - 1] != TLS_DATA) {
		tls->openssl->ERR_clear_error();
		return -EBADMSG;
	}
	tls->text = tls->start + TLS_HEADER_BYTES;
	tls->text_end = tls->text + bytes - 1;
	tls->start += size;
	return half_next(tls, &tls->in, false);
}

/* Receive more: at the front again if all was taken, or if there is no room for a record. */
static ssize_t tls_receive(struct transport *transport)
{
	struct tls *tls = transport->tls;
	ssize_t got;

	if (tls->start == tls->end || sizeof(tls->received) - tls->start < TLS_RECORD_BYTES) {
		memmove(tls->received, tls->received + tls->start, tls->end - tls->start);
		tls->end -= tls->start;
		tls->start = 0;
	}
	got = tls->below->read(transport, tls->received + tls->end, sizeof(tls->received) - tls->end);
	if (got > 0)
		tls->end += (size_t)got;
	return got;
}

/* Have something opened.  0, or what read answers. */
static int tls_next(struct transport *transport)
{
	struct tls *tls = transport->tls;

	for (;;) {
		ssize_t size = tls_record(tls), got;

		if (size < 0)
			return (int)size;
		if (size && tls->end - tls->start >= (size_t)size)
			return tls_open(tls, (size_t)size);
		got = tls_receive(transport);
		if (got < 0)
			return (int)got;
	}
}

static ssize_t tls_read(struct transport *transport, void *buffer, size_t bytes)
{
	struct tls *tls = transport->tls;
	uint8_t *to = buffer;
	size_t read = 0;

	while (read < bytes) {
		size_t now = tls->text_end - tls->text;

		if (!now) {
			int rc = tls->in.error;

			/* One system call brings many records, and what it brought is enough. */
			if (read && !tls_ready(tls))
				break;
			if (!rc)
				rc = tls_next(transport);

			if (rc && rc != -EAGAIN)
				tls->in.error = rc;
			if (rc)
				return read ? (ssize_t)read : rc;
			continue;
		}
		if (now > bytes - read)
			now = bytes - read;
		memcpy(to + read, tls->received + tls->text, now);
		tls->text += now;
		read += now;
	}
	return (ssize_t)read;
}

static int tls_wait(struct transport *transport, int timeout_ms)
{
	struct tls *tls = transport->tls;

	/* What has been received already, poll(2) does not tell of. */
	if (tls->text < tls->text_end || tls->in.error || tls_ready(tls))
		return 0;
	return tls->below->wait(transport, timeout_ms);
}

static void tls_shutdown(struct transport *transport)
{
	transport->tls->below->shutdown(transport);
}

static void tls_free(struct tls *tls)
{
	/* They clear their keys. */
	tls->openssl->EVP_CIPHER_CTX_free(tls->in.cipher);
	tls->openssl->EVP_CIPHER_CTX_free(tls->out.cipher);
	explicit_bzero(tls, sizeof(*tls));
	free(tls);
}

static void tls_drop(struct transport *transport)
{
	tls_free(transport->tls);
}

static const struct transport_ops tls_ops = {
	.name = "tls",
	.write = tls_write,
	.read = tls_read,
	.wait = tls_wait,
	.shutdown = tls_shutdown,
	.drop = tls_drop,
};

/* ---- handshake ---- */

struct handshake {
	const struct openssl *openssl;
	struct transport *transport;
	const uint8_t *key;
	SSL_CTX *context;
	SSL *ssl;
	BIO *in, *out;			/* memory: the library calls no system call of a socket */
	uint64_t end_ns;
	uint8_t record[TLS_HEADER_BYTES + TLS_HANDSHAKE_RECORD_BYTES];
};

/* The pre-shared key, as OpenSSL wants it: the session that it would have come from. */
static SSL_SESSION *handshake_session(SSL *ssl)
{
	const struct handshake *handshake;
	const struct openssl *openssl;
	const char *why;
	SSL_SESSION *session;

	openssl = openssl_open(&why);
	handshake = openssl->SSL_get_ex_data(ssl, 0);
	session = openssl->SSL_SESSION_new();
	if (session &&
	    openssl->SSL_SESSION_set1_master_key(session, handshake->key, TLS_KEY_BYTES) == 1 &&
	    openssl->SSL_SESSION_set_cipher(session, openssl->SSL_CIPHER_find(ssl, tls_suite_number)) == 1 &&
	    openssl->SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) == 1)
		return session;
	openssl->SSL_SESSION_free(session);
	return NULL;
}

static int handshake_offer(SSL *ssl, const EVP_MD *digest, const unsigned char **identity,
			   size_t *identity_bytes, SSL_SESSION **session)
{
	(void)digest;	/* there is one suite, so there is one */
	*identity = (const unsigned char *)TLS_IDENTITY;
	*identity_bytes = sizeof(TLS_IDENTITY) - 1;
	*session = handshake_session(ssl);
	return *session != NULL;
}

static int handshake_find(SSL *ssl, const unsigned char *identity, size_t identity_bytes,
			  SSL_SESSION **session)
{
	*session = NULL;
	if (identity_bytes == sizeof(TLS_IDENTITY) - 1 &&
	    memcmp(identity, TLS_IDENTITY, identity_bytes) == 0)
		*session = handshake_session(ssl);
	return 1;
}

static int handshake_make(struct handshake *handshake, bool server)
{
	const struct openssl *openssl = handshake->openssl;
	const SSL_METHOD *method = server ? openssl->TLS_server_method() : openssl->TLS_client_method();

	handshake->context = openssl->context ? openssl->SSL_CTX_new_ex(openssl->context, NULL, method)
					      : openssl->SSL_CTX_new(method);
	if (!handshake->context ||
	    openssl->SSL_CTX_ctrl(handshake->context, SSL_CTRL_SET_MIN_PROTO_VERSION, TLS1_3_VERSION, NULL) != 1 ||
	    openssl->SSL_CTX_ctrl(handshake->context, SSL_CTRL_SET_MAX_PROTO_VERSION, TLS1_3_VERSION, NULL) != 1 ||
	    openssl->SSL_CTX_set_ciphersuites(handshake->context, TLS_SUITE) != 1 ||
	    /* Nothing of the library's may follow the handshake. */
	    openssl->SSL_CTX_set_num_tickets(handshake->context, 0) != 1)
		return -ENOMEM;
	handshake->ssl = openssl->SSL_new(handshake->context);
	handshake->in = openssl->BIO_new(openssl->BIO_s_mem());
	handshake->out = openssl->BIO_new(openssl->BIO_s_mem());
	if (!handshake->ssl || !handshake->in || !handshake->out) {
		if (handshake->in)
			openssl->BIO_free(handshake->in);
		if (handshake->out)
			openssl->BIO_free(handshake->out);
		return -ENOMEM;
	}
	openssl->SSL_set_bio(handshake->ssl, handshake->in, handshake->out);
	if (openssl->SSL_set_ex_data(handshake->ssl, 0, handshake) != 1)
		return -ENOMEM;
	if (server) {
		/* Without a certificate it has nothing to offer but the key. */
		openssl->SSL_set_accept_state(handshake->ssl);
		openssl->SSL_set_psk_find_session_callback(handshake->ssl, handshake_find);
	} else {
		/* A server that offers a certificate instead fails: none is trusted. */
		openssl->SSL_set_verify(handshake->ssl, SSL_VERIFY_PEER, NULL);
		openssl->SSL_set_connect_state(handshake->ssl);
		openssl->SSL_set_psk_use_session_callback(handshake->ssl, handshake_offer);
	}
	return 0;
}

/* Send what the library has to say: less than a socket's buffer holds. */
static int handshake_flush(struct handshake *handshake)
{
	int bytes;

	while ((bytes = handshake->openssl->BIO_read(handshake->out, handshake->record,
						     sizeof(handshake->record))) > 0) {
		int rc = transport_write_all(handshake->transport, handshake->record, (size_t)bytes);

		if (rc)
			return rc;
	}
	return 0;
}

/* Give the library one record, and not a byte of what follows it: that may be data. */
static int handshake_receive(struct handshake *handshake)
{
	uint8_t *record = handshake->record;
	size_t bytes;
	int rc = transport_read_all(handshake->transport, record, TLS_HEADER_BYTES,
				    transport_left_ms(handshake->end_ns));

	if (rc)
		return rc;
	bytes = (size_t)record[3] << 8 | record[4];
	if (bytes > TLS_HANDSHAKE_RECORD_BYTES)
		return -EBADMSG;
	rc = transport_read_all(handshake->transport, record + TLS_HEADER_BYTES, bytes,
				transport_left_ms(handshake->end_ns));
	if (rc)
		return rc;
	bytes += TLS_HEADER_BYTES;
	return handshake->openssl->BIO_write(handshake->in, record, (int)bytes) == (int)bytes ? 0 : -ENOMEM;
}

/* Is it TLS that the server answers?  Nothing is taken of an answer that is not. */
static int handshake_expect(struct handshake *handshake)
{
	uint8_t first;
	int rc = handshake->transport->ops->wait(handshake->transport, transport_left_ms(handshake->end_ns));

	if (rc)
		return rc;
	if (recv(handshake->transport->descriptor, &first, 1, MSG_PEEK | MSG_DONTWAIT) != 1)
		return -EPIPE;
	return first == TLS_HANDSHAKE || first == TLS_ALERT ? 0 : -ENOMSG;
}

static int handshake_run(struct handshake *handshake, bool server)
{
	const struct openssl *openssl = handshake->openssl;

	for (int records = 0;; records++) {
		int result = openssl->SSL_do_handshake(handshake->ssl);
		int wants = result == 1 ? 0 : openssl->SSL_get_error(handshake->ssl, result);
		/* Also when it failed: that is told to the peer. */
		int rc = handshake_flush(handshake);

		if (result == 1)
			return rc;
		if (wants != SSL_ERROR_WANT_READ)
			return -EACCES;
		/* A server that refuses may have gone by then; what it has answered is there to be read. */
		if (!server && !records && (!rc || rc == -EPIPE || rc == -ECONNRESET))
			rc = handshake_expect(handshake);
		if (!rc && records >= TLS_HANDSHAKE_RECORDS)
			rc = -EBADMSG;
		if (!rc)
			rc = handshake_receive(handshake);
		if (rc)
			return rc;
	}
}

/* The handshake is over: take its keys. */
static int tls_make(struct tls **made, struct handshake *handshake, bool server)
{
	const struct openssl *openssl = handshake->openssl;
	uint8_t secrets[2 * WIRE_DIGEST_BYTES];
	struct tls *tls;
	int rc = 0;

	/* Both are so, or the handshake had failed; nothing else hangs on the library's defaults. */
	if (openssl->SSL_version(handshake->ssl) != TLS1_3_VERSION ||
	    openssl->SSL_session_reused(handshake->ssl) != 1)
		return -EACCES;
	if (openssl->SSL_export_keying_material(handshake->ssl, secrets, sizeof(secrets), TLS_EXPORT_LABEL,
						sizeof(TLS_EXPORT_LABEL) - 1, NULL, 0, 0) != 1)
		return -EIO;
	tls = calloc(1, sizeof(*tls));
	if (!tls) {
		rc = -ENOMEM;
		goto out;
	}
	tls->openssl = openssl;
	tls->below = handshake->transport->ops;
	tls->key_records = TLS_KEY_RECORDS;
	memcpy(server ? tls->in.secret : tls->out.secret, secrets, WIRE_DIGEST_BYTES);
	memcpy(server ? tls->out.secret : tls->in.secret, secrets + WIRE_DIGEST_BYTES, WIRE_DIGEST_BYTES);
	tls->in.cipher = openssl->EVP_CIPHER_CTX_new();
	tls->out.cipher = openssl->EVP_CIPHER_CTX_new();
	if (!tls->in.cipher || !tls->out.cipher)
		rc = -ENOMEM;
	if (!rc)
		rc = half_key(tls, &tls->in, false);
	if (!rc)
		rc = half_key(tls, &tls->out, true);
	if (rc)
		tls_free(tls);
	else
		*made = tls;
out:
	explicit_bzero(secrets, sizeof(secrets));
	return rc;
}

static void handshake_why(const struct handshake *handshake, int rc, bool server, char why[TLS_WHY_BYTES])
{
	unsigned long code = handshake->openssl->ERR_peek_error();
	const char *reason = code ? handshake->openssl->ERR_reason_error_string(code) : NULL;

	switch (rc) {
	case -EACCES:
		snprintf(why, TLS_WHY_BYTES, "the TLS handshake failed (%s): the %s has another secret, "
			 "or somebody changed what was said", reason ? reason : "no reason given",
			 server ? "client" : "server");
		break;
	case -ETIMEDOUT:
		snprintf(why, TLS_WHY_BYTES, "the %s did not finish the TLS handshake in time",
			 server ? "client" : "server");
		break;
	case -ENOMSG:
		snprintf(why, TLS_WHY_BYTES, "the server answers without TLS");
		break;
	default:
		snprintf(why, TLS_WHY_BYTES, "the TLS handshake broke off: %s",
			 rc == -EPIPE ? "the connection has ended" : strerror(-rc));
	}
}

int transport_tls_start(struct transport *transport, const uint8_t key[TLS_KEY_BYTES], bool server,
			int timeout_ms, char why[TLS_WHY_BYTES])
{
	struct handshake *handshake;
	const struct openssl *openssl;
	const char *missing;
	struct tls *tls = NULL;
	int rc;

	openssl = openssl_open(&missing);
	if (!openssl) {
		snprintf(why, TLS_WHY_BYTES, "%s", missing);
		return -EPROTONOSUPPORT;
	}
	if (openssl->OPENSSL_init_crypto(0, NULL) != 1) {
		snprintf(why, TLS_WHY_BYTES, "the program ends, and OpenSSL has ended before");
		return -EPROTONOSUPPORT;
	}
	handshake = calloc(1, sizeof(*handshake));
	if (!handshake) {
		snprintf(why, TLS_WHY_BYTES, "out of memory");
		return -ENOMEM;
	}
	handshake->openssl = openssl;
	handshake->transport = transport;
	handshake->key = key;
	handshake->end_ns = transport_now_ns() + (uint64_t)timeout_ms * 1000000u;
	rc = handshake_make(handshake, server);
	if (!rc)
		rc = handshake_run(handshake, server);
	if (!rc)
		rc = tls_make(&tls, handshake, server);
	if (rc)
		handshake_why(handshake, rc, server, why);
	/* The program may share the library: what went wrong here is not its affair. */
	openssl->ERR_clear_error();
	openssl->SSL_free(handshake->ssl);
	openssl->SSL_CTX_free(handshake->context);
	explicit_bzero(handshake, sizeof(*handshake));
	free(handshake);
	if (rc)
		return rc;
	transport->tls = tls;
	transport->ops = &tls_ops;
	return 0;
}

void transport_tls_set_key_records(struct transport *transport, uint32_t records)
{
	transport->tls->key_records = records;
}
