/*
 * glibc.h - binds to the oldest versions of glibc's symbols, so that a shim
 * built on a new system can be loaded into programs on an old one: glibc 2.28.
 *
 * The Makefile includes it before every source.  glibc 2.34 moved libpthread into
 * libc and gave its functions new versions beside the old ones, which stay for
 * ever; they are the same code.  fstat became a symbol in 2.33; before, <sys/stat.h>
 * turned it into __fxstat, which stays too.  tests/remoting/test_native.py reads the
 * built shim: a symbol that is too new belongs into this list.
 */
#ifndef FARBUS_WIRE_GLIBC_H
#define FARBUS_WIRE_GLIBC_H

#include <sys/stat.h>

#if defined(__GLIBC__) && defined(__x86_64__)

#define GLIBC_BIND(name, version) __asm__(".symver " #name "," #name "@GLIBC_" #version)

GLIBC_BIND(__pthread_register_cancel, 2.3.3);
GLIBC_BIND(__pthread_unregister_cancel, 2.3.3);
GLIBC_BIND(__pthread_unwind_next, 2.3.3);
GLIBC_BIND(dladdr, 2.2.5);
GLIBC_BIND(dlclose, 2.2.5);
GLIBC_BIND(dlerror, 2.2.5);
GLIBC_BIND(dlopen, 2.2.5);
GLIBC_BIND(dlsym, 2.2.5);
GLIBC_BIND(pthread_attr_setstacksize, 2.2.5);
GLIBC_BIND(pthread_condattr_setclock, 2.3.3);
GLIBC_BIND(pthread_create, 2.2.5);
GLIBC_BIND(pthread_detach, 2.2.5);
GLIBC_BIND(pthread_getspecific, 2.2.5);
GLIBC_BIND(pthread_join, 2.2.5);
GLIBC_BIND(pthread_key_create, 2.2.5);
GLIBC_BIND(pthread_mutex_trylock, 2.2.5);
GLIBC_BIND(pthread_once, 2.2.5);
GLIBC_BIND(pthread_rwlock_rdlock, 2.2.5);
GLIBC_BIND(pthread_rwlock_unlock, 2.2.5);
GLIBC_BIND(pthread_rwlock_wrlock, 2.2.5);
GLIBC_BIND(pthread_setspecific, 2.2.5);
GLIBC_BIND(pthread_sigmask, 2.2.5);
GLIBC_BIND(sem_post, 2.2.5);
GLIBC_BIND(sem_wait, 2.2.5);

/* 1: the only layout of struct stat that x86-64 has (_STAT_VER of glibc 2.32). */
int __fxstat(int version, int descriptor, struct stat *status);
GLIBC_BIND(__fxstat, 2.2.5);
#define fstat(descriptor, status) __fxstat(1, descriptor, status)

#endif
#endif
