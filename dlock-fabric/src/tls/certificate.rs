// SPDX-License-Identifier: MIT OR Apache-2.0
//! Fields of certificates and revocation lists. Nothing is verified here.

use rustls::pki_types::UnixTime;
use x509_cert::der::asn1::{AnyRef, BitStringRef, UintRef};
use x509_cert::der::{Decode, Error, Reader, SliceReader, Tag};
use x509_cert::ext::pkix::{BasicConstraints, KeyUsage};
use x509_cert::name::Name;
use x509_cert::spki::{ObjectIdentifier, SubjectPublicKeyInfoRef};
use x509_cert::time::{Time, Validity};
use x509_cert::Certificate;

/// `rsaEncryption` (RFC 8017).
const RSA: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.113549.1.1.1");
/// `id-RSASSA-PSS` (RFC 8017): an RSA key for this padding alone.
const RSA_PSS: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.113549.1.1.10");
/// The most characters of a name in a message.
const SUBJECT_CHARS_MAX: usize = 200;

/// A distinguished name as text for messages, which cannot end a line or fill the log.
pub fn readable(name: &Name) -> String {
    match name.is_empty() {
        true => "a certificate without a subject".into(),
        false => printable(&name.to_string()).chars().take(SUBJECT_CHARS_MAX).collect(),
    }
}

/// The subject of a certificate, for messages.
pub fn subject(certificate: &Certificate) -> String {
    readable(certificate.tbs_certificate().subject())
}

/// The text with its control characters escaped.
pub fn printable(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c.is_control() {
            true => out.extend(c.escape_default()),
            false => out.push(c),
        }
    }
    out
}

/// Whether the certificate may sign certificates.
pub fn is_ca(certificate: &Certificate) -> Result<bool, Error> {
    let tbs = certificate.tbs_certificate();
    let constraints = tbs.get_extension::<BasicConstraints>()?;
    let usage = tbs.get_extension::<KeyUsage>()?;
    Ok(constraints.is_some_and(|(_, c)| c.ca) && usage.is_none_or(|(_, u)| u.key_cert_sign()))
}

/// Whether its key may sign in a TLS 1.3 handshake.
pub fn may_sign_handshakes(certificate: &Certificate) -> Result<bool, Error> {
    let usage = certificate.tbs_certificate().get_extension::<KeyUsage>()?;
    Ok(usage.is_none_or(|(_, usage)| usage.digital_signature()))
}

/// A period of validity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Period {
    /// Seconds since 1970.
    pub not_before: UnixTime,
    /// Seconds since 1970; this second included.
    pub not_after: UnixTime,
}

impl Period {
    /// The reason why `now` is outside of this period, if it is.
    pub fn excludes(&self, now: UnixTime) -> Option<&'static str> {
        match now {
            now if now < self.not_before => Some("not valid yet"),
            now if now > self.not_after => Some("expired"),
            _ => None,
        }
    }
}

impl From<&Validity> for Period {
    fn from(validity: &Validity) -> Self {
        Self { not_before: unix(validity.not_before), not_after: unix(validity.not_after) }
    }
}

fn unix(time: Time) -> UnixTime {
    UnixTime::since_unix_epoch(time.to_unix_duration())
}

/// The SubjectPublicKeyInfo of a certificate of any version. Allocates nothing, as [`rsa_bits`].
pub fn public_key(der: &[u8]) -> Result<&[u8], Error> {
    AnyRef::from_der(der)?.sequence(|certificate| {
        let tbs = AnyRef::decode(certificate)?;
        certificate.drain(certificate.remaining_len())?;
        tbs.sequence(|tbs| {
            if Tag::peek(tbs)?.is_context_specific() {
                AnyRef::decode(tbs)?; // skips the version
            }
            for _serial_algorithm_issuer_validity_subject in 0..5 {
                AnyRef::decode(tbs)?;
            }
            let spki = tbs.tlv_bytes()?;
            tbs.drain(tbs.remaining_len())?;
            Ok(spki)
        })
    })
}

/// The bits of the modulus of an RSA key; `None` for other keys. Allocates nothing, because the
/// certificate may be unverified.
pub fn rsa_bits(spki: &[u8]) -> Result<Option<u32>, Error> {
    let spki = SubjectPublicKeyInfoRef::from_der(spki)?;
    if ![RSA, RSA_PSS].contains(&spki.algorithm.oid) {
        return Ok(None);
    }
    let key: BitStringRef<'_> = spki.subject_public_key;
    let mut reader = SliceReader::new(key.raw_bytes())?;
    let modulus: UintRef<'_> = reader.sequence(|reader| {
        let modulus = reader.decode()?;
        let _exponent: UintRef<'_> = reader.decode()?;
        Ok::<_, Error>(modulus)
    })?;
    let bytes = modulus.as_bytes();
    let unused = bytes.first().map_or(0, |byte| byte.leading_zeros());
    // The number of bits fits: a key file, and a handshake message, have 64 KiB at most.
    Ok(Some(u32::try_from(bytes.len() * 8).unwrap_or(u32::MAX).saturating_sub(unused)))
}

/// The issuer and the dates of a revocation list.
#[derive(Debug)]
pub struct CrlHead {
    /// The issuer's name, as text for messages.
    pub issuer: String,
    /// When the list was issued.
    pub this_update: UnixTime,
    /// When the list ends, if it has an end.
    pub next_update: Option<UnixTime>,
}

impl CrlHead {
    /// Reads the beginning of a list, which may have millions of entries.
    pub fn of(der: &[u8]) -> Result<Self, Error> {
        let list = AnyRef::from_der(der)?;
        list.sequence(|list| {
            let head = AnyRef::decode(list)?;
            list.drain(list.remaining_len())?;
            head.sequence(|head| {
                if Tag::peek(head)? == Tag::Integer {
                    AnyRef::decode(head)?; // skips the version
                }
                AnyRef::decode(head)?; // skips the algorithm
                let issuer = readable(&Name::decode(head)?);
                let this_update = unix(Time::decode(head)?);
                let due = matches!(Tag::peek(head), Ok(Tag::UtcTime | Tag::GeneralizedTime));
                let next_update = due.then(|| Time::decode(head)).transpose()?.map(unix);
                head.drain(head.remaining_len())?;
                Ok(Self { issuer, this_update, next_update })
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn at(secs: u64) -> UnixTime {
        UnixTime::since_unix_epoch(Duration::from_secs(secs))
    }

    #[test]
    fn a_period_has_its_first_and_its_last_second() {
        let period = Period { not_before: at(10), not_after: at(20) };
        assert_eq!(period.excludes(at(9)), Some("not valid yet"));
        assert_eq!(period.excludes(at(10)), None);
        assert_eq!(period.excludes(at(20)), None);
        assert_eq!(period.excludes(at(21)), Some("expired"));
    }

    /// An RSA key with this modulus, and the exponent 3.
    fn rsa(modulus: &[u8]) -> Vec<u8> {
        let block = |tag: u8, content: &[u8]| {
            let len = content.len();
            [&[tag, 0x82, (len >> 8) as u8, len as u8], content].concat()
        };
        // DER requires the shortest form of a length; from 256 bytes on it is this one.
        let key = block(0x30, &[&block(0x02, modulus)[..], &[2, 1, 3]].concat());
        let algorithm = [0x30, 13, 6, 9, 0x2a, 0x86, 0x48, 0x86, 0xf7, 13, 1, 1, 1, 5, 0];
        block(0x30, &[&algorithm[..], &block(0x03, &[&[0], &key[..]].concat())].concat())
    }

    #[test]
    fn the_size_of_an_rsa_key_is_that_of_its_modulus() {
        let modulus = |first: u8| [&[0, first], &[0xff; 255][..]].concat();
        assert_eq!(rsa_bits(&rsa(&modulus(0x80))).unwrap(), Some(2048));
        // This modulus has no leading zero, because its first bit is not set.
        assert_eq!(rsa_bits(&rsa(&modulus(0x40)[1..])).unwrap(), Some(2047));
        let whole = rsa(&modulus(0x80));
        for len in 0..whole.len() {
            assert!(rsa_bits(&whole[..len]).is_err(), "{len}");
        }
    }

    #[test]
    fn control_characters_do_not_get_into_messages() {
        assert_eq!(printable("Größe\n\u{1b}[0m\u{85}"), "Größe\\n\\u{1b}[0m\\u{85}");
    }

    #[test]
    fn what_is_no_list_has_no_head() {
        for bytes in [&[][..], &[0x30], &[0x30, 0], &[0x30, 2, 0x30, 0], &[0x30, 0x80, 0, 0]] {
            assert!(CrlHead::of(bytes).is_err(), "{bytes:?}");
        }
    }
}
