/* openssl.h - the few functions of OpenSSL that tls.c calls, found when the first session needs them.
 *
 * The shim is a guest in somebody's program, which may have an OpenSSL of its own: it
 * links none.  The system's is opened with its symbols kept to itself, and used through
 * this table.  OpenSSL 3 and 1.1.1 have the same prototypes here; no header of theirs is needed.
 */
#ifndef FARBUS_TRANSPORT_OPENSSL_H
#define FARBUS_TRANSPORT_OPENSSL_H

#include <stddef.h>
#include <stdint.h>

/* Opaque, as in OpenSSL's headers. */
typedef struct ssl_st SSL;
typedef struct ssl_ctx_st SSL_CTX;
typedef struct ssl_method_st SSL_METHOD;
typedef struct ssl_session_st SSL_SESSION;
typedef struct ssl_cipher_st SSL_CIPHER;
typedef struct bio_st BIO;
typedef struct bio_method_st BIO_METHOD;
typedef struct evp_md_st EVP_MD;
typedef struct evp_cipher_st EVP_CIPHER;
typedef struct evp_cipher_ctx_st EVP_CIPHER_CTX;
typedef struct engine_st ENGINE;
typedef struct ossl_lib_ctx_st OSSL_LIB_CTX;
typedef struct ossl_init_settings_st OPENSSL_INIT_SETTINGS;

typedef int (*SSL_psk_use_session_cb_func)(SSL *ssl, const EVP_MD *digest, const unsigned char **identity,
					   size_t *identity_bytes, SSL_SESSION **session);
typedef int (*SSL_psk_find_session_cb_func)(SSL *ssl, const unsigned char *identity,
					    size_t identity_bytes, SSL_SESSION **session);

/* openssl/crypto.h, ssl.h, tls1.h, evp.h */
#define OPENSSL_INIT_NO_ATEXIT 0x00080000ull
#define SSL_ERROR_WANT_READ 2
#define SSL_CTRL_SET_MIN_PROTO_VERSION 123
#define SSL_CTRL_SET_MAX_PROTO_VERSION 124
#define SSL_VERIFY_NONE 0
#define SSL_VERIFY_PEER 1
#define TLS1_3_VERSION 0x0304
#define EVP_CTRL_AEAD_GET_TAG 0x10
#define EVP_CTRL_AEAD_SET_TAG 0x11

/* X(result, name, parameters) */
#define OPENSSL_FUNCTIONS(X) \
	X(int, OPENSSL_init_crypto, (uint64_t, const OPENSSL_INIT_SETTINGS *)) \
	X(const SSL_METHOD *, TLS_client_method, (void)) \
	X(const SSL_METHOD *, TLS_server_method, (void)) \
	X(SSL_CTX *, SSL_CTX_new, (const SSL_METHOD *)) \
	X(void, SSL_CTX_free, (SSL_CTX *)) \
	X(long, SSL_CTX_ctrl, (SSL_CTX *, int, long, void *)) \
	X(int, SSL_CTX_set_ciphersuites, (SSL_CTX *, const char *)) \
	X(int, SSL_CTX_set_num_tickets, (SSL_CTX *, size_t)) \
	X(SSL *, SSL_new, (SSL_CTX *)) \
	X(void, SSL_free, (SSL *)) \
	X(void, SSL_set_bio, (SSL *, BIO *, BIO *)) \
	X(void, SSL_set_connect_state, (SSL *)) \
	X(void, SSL_set_accept_state, (SSL *)) \
	X(void, SSL_set_verify, (SSL *, int, void *)) \
	X(int, SSL_set_ex_data, (SSL *, int, void *)) \
	X(void *, SSL_get_ex_data, (const SSL *, int)) \
	X(void, SSL_set_psk_use_session_callback, (SSL *, SSL_psk_use_session_cb_func)) \
	X(void, SSL_set_psk_find_session_callback, (SSL *, SSL_psk_find_session_cb_func)) \
	X(int, SSL_do_handshake, (SSL *)) \
	X(int, SSL_get_error, (const SSL *, int)) \
	X(int, SSL_version, (const SSL *)) \
	X(int, SSL_session_reused, (const SSL *)) \
	X(int, SSL_export_keying_material, \
	  (SSL *, unsigned char *, size_t, const char *, size_t, const unsigned char *, size_t, int)) \
	X(SSL_SESSION *, SSL_SESSION_new, (void)) \
	X(void, SSL_SESSION_free, (SSL_SESSION *)) \
	X(int, SSL_SESSION_set1_master_key, (SSL_SESSION *, const unsigned char *, size_t)) \
	X(int, SSL_SESSION_set_cipher, (SSL_SESSION *, const SSL_CIPHER *)) \
	X(int, SSL_SESSION_set_protocol_version, (SSL_SESSION *, int)) \
	X(const SSL_CIPHER *, SSL_CIPHER_find, (SSL *, const unsigned char *)) \
	X(const BIO_METHOD *, BIO_s_mem, (void)) \
	X(BIO *, BIO_new, (const BIO_METHOD *)) \
	X(int, BIO_free, (BIO *)) \
	X(int, BIO_read, (BIO *, void *, int)) \
	X(int, BIO_write, (BIO *, const void *, int)) \
	X(EVP_CIPHER_CTX *, EVP_CIPHER_CTX_new, (void)) \
	X(void, EVP_CIPHER_CTX_free, (EVP_CIPHER_CTX *)) \
	X(int, EVP_CIPHER_CTX_ctrl, (EVP_CIPHER_CTX *, int, int, void *)) \
	X(const EVP_CIPHER *, EVP_aes_128_gcm, (void)) \
	X(int, EVP_CipherInit_ex, \
	  (EVP_CIPHER_CTX *, const EVP_CIPHER *, ENGINE *, const unsigned char *, const unsigned char *, int)) \
	X(int, EVP_CipherUpdate, (EVP_CIPHER_CTX *, unsigned char *, int *, const unsigned char *, int)) \
	X(int, EVP_CipherFinal_ex, (EVP_CIPHER_CTX *, unsigned char *, int *)) \
	X(unsigned long, ERR_peek_error, (void)) \
	X(const char *, ERR_reason_error_string, (unsigned long)) \
	X(void, ERR_clear_error, (void))

/* OpenSSL 3 alone: NULL with 1.1.1. */
#define OPENSSL_FUNCTIONS_3(X) \
	X(OSSL_LIB_CTX *, OSSL_LIB_CTX_new, (void)) \
	X(SSL_CTX *, SSL_CTX_new_ex, (OSSL_LIB_CTX *, const char *, const SSL_METHOD *)) \
	X(EVP_CIPHER *, EVP_CIPHER_fetch, (OSSL_LIB_CTX *, const char *, const char *))

struct openssl {
#define OPENSSL_MEMBER(result, name, parameters) result(*name) parameters;
	OPENSSL_FUNCTIONS(OPENSSL_MEMBER)
	OPENSSL_FUNCTIONS_3(OPENSSL_MEMBER)
#undef OPENSSL_MEMBER
	/* A context of our own (OpenSSL 3): what the program does to the default one, by its
	 * configuration or when it exits, is not our affair, nor ours its.  NULL: 1.1.1. */
	OSSL_LIB_CTX *context;
	const EVP_CIPHER *aes_128_gcm;
};

/* The table, filled by the first call of this process; NULL, with one line that says what to
 * do, where there is no OpenSSL that will do.  Never unloaded. */
const struct openssl *openssl_open(const char **why);

#endif
