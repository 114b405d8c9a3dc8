// SPDX-License-Identifier: MIT OR Apache-2.0
//! A peer that follows none of our rules.

use std::sync::Arc;

use dlock_fabric::tls::PeerRole;
use rcgen::KeyPair;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::ResolvesClientCert;
use rustls::crypto::ring::cipher_suite::TLS13_AES_256_GCM_SHA384;
use rustls::crypto::ring::{default_provider, sign::any_supported_type};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{
    ClientConfig, DigitallySignedStruct, DistinguishedName, Error, ServerConfig, SignatureScheme,
    SupportedCipherSuite,
};

use crate::drive::{client, server, Peer};
use crate::pki::Identity;

/// A peer that checks nothing, and presents a given certificate.
#[derive(Debug)]
pub struct Hostile {
    certified: Option<Arc<CertifiedKey>>,
    suite: SupportedCipherSuite,
}

impl Hostile {
    pub fn new(identity: &Identity) -> Self {
        Self::signing_with(identity, &identity.key)
    }

    pub fn signing_with(identity: &Identity, key: &KeyPair) -> Self {
        let chain = identity.chain.iter().cloned().map(CertificateDer::from).collect();
        let key = any_supported_type(&PrivatePkcs8KeyDer::from(key.serialized_der()).into());
        let certified = CertifiedKey::new(chain, key.expect("P-256"));
        Self { certified: Some(Arc::new(certified)), suite: TLS13_AES_256_GCM_SHA384 }
    }

    pub fn nobody() -> Self {
        Self { certified: None, suite: TLS13_AES_256_GCM_SHA384 }
    }

    pub fn with_suite(self, suite: SupportedCipherSuite) -> Self {
        Self { suite, ..self }
    }

    pub fn into_peer(self, role: PeerRole) -> Peer {
        let mut provider = default_provider();
        provider.cipher_suites = vec![self.suite];
        let provider = Arc::new(provider);
        let this = Arc::new(self);
        match role {
            PeerRole::Client => client(Arc::new(
                ClientConfig::builder_with_provider(provider)
                    .with_safe_default_protocol_versions()
                    .expect("1.3")
                    .dangerous()
                    .with_custom_certificate_verifier(this.clone())
                    .with_client_cert_resolver(this),
            )),
            PeerRole::Server => server(Arc::new(
                ServerConfig::builder_with_provider(provider)
                    .with_safe_default_protocol_versions()
                    .expect("1.3")
                    .with_client_cert_verifier(this.clone())
                    .with_cert_resolver(this),
            )),
        }
    }
}

impl ResolvesClientCert for Hostile {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        self.certified.clone()
    }

    fn has_certs(&self) -> bool {
        self.certified.is_some()
    }
}

impl ResolvesServerCert for Hostile {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.certified.clone()
    }
}

impl ServerCertVerifier for Hostile {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        default_provider().signature_verification_algorithms.supported_schemes()
    }
}

impl ClientCertVerifier for Hostile {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        default_provider().signature_verification_algorithms.supported_schemes()
    }
}
