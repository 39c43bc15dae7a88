#include "openssl.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>

static const char *const libraries[] = { "libssl.so.3", "libssl.so.1.1" };

static struct openssl openssl;
static const char *openssl_missing;	/* why there is no table */

/* A program may export functions with the names of OpenSSL's (one that has it linked into
 * itself does): the library's calls to itself must not lead there.  The sanitizers' runtime
 * refuses to open anything in this way, and no program of that kind needs it. */
static int openssl_flags(void)
{
	bool sanitized = dlsym(RTLD_DEFAULT, "__asan_init") || dlsym(RTLD_DEFAULT, "__msan_init") ||
			 dlsym(RTLD_DEFAULT, "__tsan_init");

	return RTLD_NOW | RTLD_LOCAL | (sanitized ? 0 : RTLD_DEEPBIND);
}

static bool openssl_load(struct openssl *table, void *library)
{
	/* libcrypto's are found through libssl, which depends on it: never of another version. */
#define OPENSSL_FIND(result, name, parameters) \
	*(void **)&table->name = dlsym(library, #name);
#define OPENSSL_NEED(result, name, parameters) \
	OPENSSL_FIND(result, name, parameters) \
	if (!table->name) \
		return false;
	OPENSSL_FUNCTIONS(OPENSSL_NEED)
	OPENSSL_FUNCTIONS_3(OPENSSL_FIND)
#undef OPENSSL_NEED
#undef OPENSSL_FIND
	/* Before anything else of it: a program that exits still calls CUDA, from its destructors, and a
	 * session that is cut then needs a handshake.  Where the program was the first to use OpenSSL,
	 * this changes nothing, and the handshake fails from then on (-EPROTONOSUPPORT). */
	if (table->OPENSSL_init_crypto(OPENSSL_INIT_NO_ATEXIT, NULL) != 1)
		return false;
	if (table->OSSL_LIB_CTX_new && table->SSL_CTX_new_ex && table->EVP_CIPHER_fetch) {
		table->context = table->OSSL_LIB_CTX_new();
		if (!table->context)
			return false;
		table->aes_128_gcm = table->EVP_CIPHER_fetch(table->context, "AES-128-GCM", NULL);
	} else {
		table->aes_128_gcm = table->EVP_aes_128_gcm();
	}
	return table->aes_128_gcm;
}

static void openssl_find(void)
{
	int flags = openssl_flags();

	for (size_t i = 0; i < sizeof(libraries) / sizeof(libraries[0]); i++) {
		void *library = dlopen(libraries[i], flags);

		if (library && openssl_load(&openssl, library))
			return;
		if (library) {
			openssl_missing = "this OpenSSL has no TLS 1.3 with AES-128-GCM; "
					  "install OpenSSL 3 (package libssl3 or openssl-libs)";
			return;
		}
	}
	openssl_missing = "no libssl.so.3 on this machine; "
			  "install OpenSSL 3 (package libssl3 or openssl-libs)";
}

const struct openssl *openssl_open(const char **why)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, openssl_find);
	*why = openssl_missing;
	return openssl_missing ? NULL : &openssl;
}
