/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A private CA in a folder of its own, made with OpenSSL: certificates, right and wrong, and lists. */
#ifndef DLOCK_TESTS_CERTIFICATES_H
#define DLOCK_TESTS_CERTIFICATES_H

#include <openssl/ec.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>

#include "check.h"

#define HOUR 3600L

struct pair {
    X509 *cert;
    EVP_PKEY *key;
};

static char folder[] = "/tmp/dlock-certificates-XXXXXX";

/* A path in the folder; eight of them are valid at a time. */
static char *in_folder(const char *name)
{
    static char paths[8][512];
    static unsigned next;
    char *path = paths[next++ % 8];
    snprintf(path, sizeof(paths[0]), "%s/%s", folder, name);
    return path;
}

static FILE *new_file(const char *name, const char *suffix, const char *mode)
{
    char whole[64];
    snprintf(whole, sizeof(whole), "%s%s", name, suffix);
    FILE *file = fopen(in_folder(whole), mode);
    NEED(file != NULL);
    return file;
}

static EVP_PKEY *new_key(void)
{
    EVP_PKEY *key = NULL;
    EVP_PKEY_CTX *ctx = EVP_PKEY_CTX_new_id(EVP_PKEY_EC, NULL);
    NEED(ctx != NULL && EVP_PKEY_keygen_init(ctx) == 1);
    NEED(EVP_PKEY_CTX_set_ec_paramgen_curve_nid(ctx, NID_X9_62_prime256v1) == 1);
    NEED(EVP_PKEY_keygen(ctx, &key) == 1);
    EVP_PKEY_CTX_free(ctx);
    return key;
}

static void extend(X509 *cert, int nid, const char *value)
{
    char text[64];
    X509_EXTENSION *extension = X509V3_EXT_conf_nid(NULL, NULL, nid,
                                                    mutable_text(value, text, sizeof(text)));
    NEED(extension != NULL && X509_add_ext(cert, extension, -1) == 1);
    X509_EXTENSION_free(extension);
}

/* Issues a certificate that is valid until so many seconds from now; issuer NULL: by itself. */
static struct pair issue(const char *name, const struct pair *issuer, int is_ca, long until)
{
    static long serial;
    struct pair made = {X509_new(), new_key()};
    X509_NAME *subject = X509_NAME_new();
    const unsigned char *text = (const unsigned char *)name;
    NEED(made.cert != NULL && subject != NULL);
    NEED(X509_NAME_add_entry_by_NID(subject, NID_commonName, MBSTRING_ASC, text, -1, -1, 0) == 1);
    NEED(X509_set_version(made.cert, 2) == 1); /* 3 */
    NEED(ASN1_INTEGER_set(X509_get_serialNumber(made.cert), ++serial) == 1);
    NEED(X509_set_subject_name(made.cert, subject) == 1);
    NEED(X509_set_issuer_name(made.cert, issuer != NULL ? X509_get_subject_name(issuer->cert)
                                                         : subject) == 1);
    NEED(X509_gmtime_adj(X509_getm_notBefore(made.cert), -2 * HOUR) != NULL);
    NEED(X509_gmtime_adj(X509_getm_notAfter(made.cert), until) != NULL);
    NEED(X509_set_pubkey(made.cert, made.key) == 1);
    extend(made.cert, NID_basic_constraints, is_ca ? "critical,CA:TRUE" : "CA:FALSE");
    extend(made.cert, NID_key_usage, is_ca ? "keyCertSign,cRLSign" : "digitalSignature");
    if (!is_ca)
        extend(made.cert, NID_ext_key_usage, "clientAuth,serverAuth");
    NEED(X509_sign(made.cert, issuer != NULL ? issuer->key : made.key, EVP_sha256()) > 0);
    X509_NAME_free(subject);
    return made;
}

static void forget(struct pair *pair)
{
    X509_free(pair->cert);
    EVP_PKEY_free(pair->key);
}

/* Appends a certificate to NAME.pem. */
static void append_cert(const char *name, X509 *cert)
{
    FILE *file = new_file(name, ".pem", "a");
    NEED(PEM_write_X509(file, cert) == 1);
    fclose(file);
}

/* Issues NAME.pem, with the issuer's certificate behind it, and NAME.key. */
static void issue_files(const char *name, const struct pair *issuer, long until, X509 **cert)
{
    struct pair made = issue(name, issuer, 0, until);
    append_cert(name, made.cert);
    append_cert(name, issuer->cert);
    FILE *file = new_file(name, ".key", "w");
    NEED(PEM_write_PKCS8PrivateKey(file, made.key, NULL, NULL, 0, NULL, NULL) == 1);
    fclose(file);
    if (cert != NULL) {
        X509_up_ref(made.cert);
        *cert = made.cert;
    }
    forget(&made);
}

/* Appends a list of a CA to NAME.pem; revoked may be NULL. */
static void append_crl(const char *name, const struct pair *ca, X509 *revoked)
{
    X509_CRL *crl = X509_CRL_new();
    ASN1_TIME *since = X509_gmtime_adj(NULL, -HOUR), *until = X509_gmtime_adj(NULL, HOUR);
    NEED(crl != NULL && since != NULL && until != NULL && X509_CRL_set_version(crl, 1) == 1);
    NEED(X509_CRL_set_issuer_name(crl, X509_get_subject_name(ca->cert)) == 1);
    NEED(X509_CRL_set1_lastUpdate(crl, since) == 1 && X509_CRL_set1_nextUpdate(crl, until) == 1);
    /* RFC 5280 wants both, and there are programs that insist. */
    ASN1_INTEGER *number = ASN1_INTEGER_new();
    NEED(number != NULL && ASN1_INTEGER_set(number, 1) == 1);
    NEED(X509_CRL_add1_ext_i2d(crl, NID_crl_number, number, 0, 0) == 1);
    ASN1_INTEGER_free(number);
    if (revoked != NULL) {
        X509_REVOKED *entry = X509_REVOKED_new();
        NEED(entry != NULL);
        NEED(X509_REVOKED_set_serialNumber(entry, X509_get_serialNumber(revoked)) == 1);
        NEED(X509_REVOKED_set_revocationDate(entry, since) == 1);
        NEED(X509_CRL_add0_revoked(crl, entry) == 1);
    }
    NEED(X509_CRL_sort(crl) == 1 && X509_CRL_sign(crl, ca->key, EVP_sha256()) > 0);
    FILE *file = new_file(name, ".pem", "a");
    NEED(PEM_write_X509_CRL(file, crl) == 1);
    fclose(file);
    ASN1_TIME_free(since);
    ASN1_TIME_free(until);
    X509_CRL_free(crl);
}

/* ca.pem, crl.pem, and below an intermediate CA: server, client, revoked, expired. The stranger is
 * another CA's. */
static void make_certificates(void)
{
    X509 *revoked = NULL;
    umask(077); /* keys are secrets */
    NEED(mkdtemp(folder) != NULL);
    struct pair root = issue("root", NULL, 1, HOUR), other = issue("other", NULL, 1, HOUR);
    struct pair middle = issue("middle", &root, 1, HOUR);
    append_cert("ca", root.cert);
    issue_files("server", &middle, HOUR, NULL);
    issue_files("client", &middle, HOUR, NULL);
    issue_files("revoked", &middle, HOUR, &revoked);
    issue_files("expired", &middle, -HOUR, NULL);
    issue_files("stranger", &other, HOUR, NULL);
    append_crl("crl", &root, NULL);
    append_crl("crl", &middle, revoked);
    X509_free(revoked);
    forget(&root);
    forget(&middle);
    forget(&other);
}

static void remove_certificates(void)
{
    DIR *dir = opendir(folder);
    for (struct dirent *entry; dir != NULL && (entry = readdir(dir)) != NULL;) {
        if (entry->d_name[0] != '.')
            unlink(in_folder(entry->d_name));
    }
    if (dir != NULL)
        closedir(dir);
    rmdir(folder);
}

#endif
