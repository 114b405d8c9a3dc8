// SPDX-License-Identifier: MIT OR Apache-2.0
//! Records sealed with AES-256-GCM: the data path of a TLS session over the queue pairs of a
//! device.
//!
//! | bytes | field | |
//! |---|---|---|
//! | 0 | version | [`VERSION`] |
//! | 1 | type | [`DATA`], the only one |
//! | 2–3 | length of the plaintext | |
//! | 4–7 | epoch of the key | the sequence number divided by [`RECORDS_PER_KEY`] |
//! | 8–15 | sequence number | 0 for the first record of a direction |
//! | 16– | ciphertext | as long as the plaintext |
//! | the last 16 | tag | over the ciphertext and the 16 bytes of the header |
//!
//! ```text
//!   TLS exporter ─▶ a secret for each client and direction
//!   secret n ─HKDF─▶ key n, IV n, secret n+1          nonce = IV n xor sequence number
//! ```
//! *Nonces.* A sequence number is used once: sealing increments it, and it never restarts or wraps.
//! So no nonce is used twice with one key. A channel ends at [`RECORDS_MAX`] records.
//!
//! *New keys.* After [`RECORDS_PER_KEY`] records, of 64 KiB at most, both ends derive the next key,
//! without a message. The secret of the old key is wiped, so that a leaked key opens neither
//! earlier records nor later ones.
//!
//! *Receiving.* The next record must have exactly the next sequence number, because the transport
//! is reliable and in order. A record that was replayed, reordered, left out, cut or changed breaks
//! the channel for good.
//!
//! This module sends nothing, and allocates nothing for a record before it is authenticated.

use dlock_core::ids::ClientId;
use ring::aead::{Aad, LessSafeKey, Nonce, UnboundKey, AES_256_GCM, NONCE_LEN};
use ring::hkdf::{KeyType, Prk, HKDF_SHA384};
use zeroize::Zeroizing;

/// The layout of a record.
pub const VERSION: u8 = 1;
/// The type of a record that carries bytes of the stream.
pub const DATA: u8 = 1;
/// Bytes in front of the ciphertext.
pub const HEADER_LEN: usize = 16;
/// Bytes behind the ciphertext.
pub const TAG_LEN: usize = 16;
/// Bytes that a record adds to its plaintext.
pub const OVERHEAD: usize = HEADER_LEN + TAG_LEN;
/// How many records one key seals. With records of 64 KiB these are 2^32 blocks, far below the
/// limit of AES-GCM (RFC 8446, 5.5: about 2^38).
pub const RECORDS_PER_KEY: u64 = 1 << 20;
/// The most records of one direction of a channel, which then ends: 8 years at a million a second.
pub const RECORDS_MAX: u64 = 1 << 48;

/// The label for the TLS exporter (RFC 5705 keeps this prefix for private use).
pub(crate) const EXPORTER_LABEL: &[u8] = b"EXPERIMENTAL dlock sealed data path";
/// Bytes of a secret: the length of the hash.
const SECRET_LEN: usize = 48;
const KEY_LEN: usize = 32;

/// The reason why a record was not sealed, or was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    /// The record is empty, shorter than a header and a tag, or not as long as its header says.
    #[error("a record of {len} bytes that is empty, cut short or too long")]
    Length {
        /// Bytes of the record.
        len: usize,
    },
    /// The version or type is not known.
    #[error("a record of version {version} and type {kind}, which is not known")]
    Unknown {
        /// The record's version.
        version: u8,
        /// The record's type.
        kind: u8,
    },
    /// The record was replayed or reordered, or another one was left out.
    #[error("record {came} where {expected} is due: it was replayed, reordered or left out")]
    OutOfOrder {
        /// The number that is due.
        expected: u64,
        /// The number that came.
        came: u64,
    },
    /// The epoch does not fit the sequence number.
    #[error("record of key epoch {came} where {expected} is due")]
    Epoch {
        /// The epoch that is due.
        expected: u32,
        /// The epoch that came.
        came: u32,
    },
    /// The record was changed on its way, or sealed with another key.
    #[error("a record that is not authentic")]
    Forged,
    /// The direction has reached [`RECORDS_MAX`].
    #[error("the sequence numbers of the channel are used up")]
    Exhausted,
}

/// The secrets of one client's two directions.
pub struct SealSecrets {
    to_primary: Zeroizing<[u8; SECRET_LEN]>,
    to_client: Zeroizing<[u8; SECRET_LEN]>,
}

impl std::fmt::Debug for SealSecrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SealSecrets(..)")
    }
}

impl SealSecrets {
    /// The secrets of this client. `exporter` fills a buffer for a context.
    pub fn export<E>(
        client: ClientId,
        exporter: impl Fn(&mut [u8], &[u8]) -> Result<(), E>,
    ) -> Result<Self, E> {
        let secret = |direction: &[u8]| {
            let mut secret = Zeroizing::new([0; SECRET_LEN]);
            let context = [direction, &client.get().to_be_bytes()].concat();
            exporter(&mut secret[..], &context).map(|()| secret)
        };
        Ok(Self { to_primary: secret(b"to primary")?, to_client: secret(b"to client")? })
    }

    /// The client's end: for sealing and for opening.
    pub fn of_client(self) -> (Sealer, Opener) {
        (Sealer::new(self.to_primary, BOUNDS), Opener::new(self.to_client, BOUNDS))
    }

    /// The primary's end.
    pub fn of_primary(self) -> (Sealer, Opener) {
        (Sealer::new(self.to_client, BOUNDS), Opener::new(self.to_primary, BOUNDS))
    }
}

/// The limits of keys and channels.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    records_per_key: u64,
    records_max: u64,
}

const BOUNDS: Bounds = Bounds { records_per_key: RECORDS_PER_KEY, records_max: RECORDS_MAX };
// an epoch has 32 bits
const _: () = assert!(RECORDS_MAX / RECORDS_PER_KEY <= 1 << 32);

/// One direction: the key in use, and the number of the next record.
#[derive(Debug)]
struct Direction {
    secret: Zeroizing<[u8; SECRET_LEN]>,
    key: LessSafeKey,
    iv: [u8; NONCE_LEN],
    epoch: u32,
    seq: u64,
    bounds: Bounds,
}

impl Direction {
    fn new(secret: Zeroizing<[u8; SECRET_LEN]>, bounds: Bounds) -> Self {
        let (key, iv, secret) = derive(&secret);
        Self { secret, key, iv, epoch: 0, seq: 0, bounds }
    }

    /// Changes to the key of the next record, if it is a new one.
    fn turn(&mut self) -> Result<(), SealError> {
        if self.seq >= self.bounds.records_max {
            return Err(SealError::Exhausted);
        }
        // the assertion above says that an epoch fits into 32 bits
        let due = (self.seq / self.bounds.records_per_key) as u32;
        if self.epoch != due {
            (self.key, self.iv, self.secret) = derive(&self.secret);
            self.epoch += 1;
        }
        assert_eq!(self.epoch, due, "numbers are counted one by one");
        Ok(())
    }

    /// The nonce for the next sequence number; the caller increments it at once.
    fn nonce(&self) -> Nonce {
        Nonce::assume_unique_for_key(nonce_of(&self.iv, self.seq))
    }
}

/// Seals the records of one direction.
#[derive(Debug)]
pub struct Sealer(Direction);

impl Sealer {
    fn new(secret: Zeroizing<[u8; SECRET_LEN]>, bounds: Bounds) -> Self {
        Self(Direction::new(secret, bounds))
    }

    /// Seals these bytes as the next record, which replaces the content of `record`.
    ///
    /// # Errors
    /// `Length`: no bytes, or more than fit into a record; nothing was sealed. `Exhausted`: the
    /// channel has to end.
    pub fn seal(&mut self, plaintext: &[u8], record: &mut Vec<u8>) -> Result<(), SealError> {
        let len = plaintext.len();
        let len16 = u16::try_from(len).ok().filter(|&len| len > 0);
        let len16 = len16.ok_or(SealError::Length { len })?;
        let one = &mut self.0;
        one.turn()?;
        let header = Header { len: len16, epoch: one.epoch, seq: one.seq }.bytes();
        record.clear();
        record.extend_from_slice(&header);
        record.extend_from_slice(plaintext);
        let nonce = one.nonce();
        one.seq += 1;
        let body = &mut record[HEADER_LEN..];
        // ring fails only for more than 64 GiB.
        let tag = one.key.seal_in_place_separate_tag(nonce, Aad::from(&header), body);
        record.extend_from_slice(tag.map_err(|_| SealError::Length { len })?.as_ref());
        Ok(())
    }
}

/// Opens the records of one direction.
#[derive(Debug)]
pub struct Opener {
    direction: Direction,
    /// The error that broke the channel.
    broken: Option<SealError>,
}

impl Opener {
    fn new(secret: Zeroizing<[u8; SECRET_LEN]>, bounds: Bounds) -> Self {
        Self { direction: Direction::new(secret, bounds), broken: None }
    }

    /// Opens the next record in place; returns the plaintext.
    ///
    /// # Errors
    /// The record is not the next one as it was sealed; every later call fails with the same error.
    pub fn open<'a>(&mut self, record: &'a mut [u8]) -> Result<&'a [u8], SealError> {
        if let Some(error) = self.broken {
            return Err(error);
        }
        let opened = self.try_open(record);
        self.broken = opened.as_ref().err().copied();
        opened
    }

    fn try_open<'a>(&mut self, record: &'a mut [u8]) -> Result<&'a [u8], SealError> {
        let len = record.len();
        let Some((head, body)) = record.split_first_chunk_mut() else {
            return Err(SealError::Length { len });
        };
        let header = Header::of(head)?;
        if header.len == 0 || body.len() != usize::from(header.len) + TAG_LEN {
            return Err(SealError::Length { len });
        }
        let one = &mut self.direction;
        one.turn()?;
        if header.seq != one.seq {
            return Err(SealError::OutOfOrder { expected: one.seq, came: header.seq });
        }
        if header.epoch != one.epoch {
            return Err(SealError::Epoch { expected: one.epoch, came: header.epoch });
        }
        let nonce = one.nonce();
        let opened = one.key.open_in_place(nonce, Aad::from(&*head), body);
        let plaintext = opened.map_err(|_| SealError::Forged)?;
        one.seq += 1;
        Ok(plaintext)
    }
}

/// The variable fields of a record's header.
#[derive(Clone, Copy, Debug)]
struct Header {
    len: u16,
    epoch: u32,
    seq: u64,
}

impl Header {
    fn bytes(self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        bytes[..2].copy_from_slice(&[VERSION, DATA]);
        bytes[2..4].copy_from_slice(&self.len.to_be_bytes());
        bytes[4..8].copy_from_slice(&self.epoch.to_be_bytes());
        bytes[8..].copy_from_slice(&self.seq.to_be_bytes());
        bytes
    }

    fn of(bytes: &[u8; HEADER_LEN]) -> Result<Self, SealError> {
        let &[version, kind, l0, l1, e0, e1, e2, e3, seq @ ..] = bytes;
        if (version, kind) != (VERSION, DATA) {
            return Err(SealError::Unknown { version, kind });
        }
        let (len, epoch) = (u16::from_be_bytes([l0, l1]), u32::from_be_bytes([e0, e1, e2, e3]));
        Ok(Self { len, epoch, seq: u64::from_be_bytes(seq) })
    }
}

/// As in TLS 1.3: the IV, with the sequence number in its last 8 bytes.
fn nonce_of(iv: &[u8; NONCE_LEN], seq: u64) -> [u8; NONCE_LEN] {
    let mut nonce = *iv;
    for (byte, number) in nonce[NONCE_LEN - 8..].iter_mut().zip(seq.to_be_bytes()) {
        *byte ^= number;
    }
    nonce
}

/// The key and the IV of a secret, and the secret of the next key.
fn derive(
    secret: &[u8; SECRET_LEN],
) -> (LessSafeKey, [u8; NONCE_LEN], Zeroizing<[u8; SECRET_LEN]>) {
    let (mut key, mut next) = (Zeroizing::new([0; KEY_LEN]), Zeroizing::new([0; SECRET_LEN]));
    let mut iv = [0; NONCE_LEN];
    let prk = Prk::new_less_safe(HKDF_SHA384, secret);
    let expand = |label: &str, into: &mut [u8]| {
        let info = [b"dlock sealed ", label.as_bytes()];
        let filled = prk.expand(&info, Length(into.len())).and_then(|okm| okm.fill(into));
        filled.expect("HKDF gives up to 255 times 48 bytes");
    };
    expand("key", &mut key[..]);
    expand("iv", &mut iv);
    expand("next secret", &mut next[..]);
    let key = UnboundKey::new(&AES_256_GCM, &key[..]).expect("a key of 32 bytes");
    (LessSafeKey::new(key), iv, next)
}

/// The number of bytes that HKDF produces.
struct Length(usize);

impl KeyType for Length {
    fn len(&self) -> usize {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// Small limits for tests: few records for each key, and for the channel.
    const FEW: Bounds = Bounds { records_per_key: 5, records_max: 64 };

    fn secret(n: u8) -> Zeroizing<[u8; SECRET_LEN]> {
        Zeroizing::new([n; SECRET_LEN])
    }

    fn pair(bounds: Bounds) -> (Sealer, Opener) {
        (Sealer::new(secret(7), bounds), Opener::new(secret(7), bounds))
    }

    fn sealed(sealer: &mut Sealer, plaintext: &[u8]) -> Vec<u8> {
        let mut record = Vec::new();
        sealer.seal(plaintext, &mut record).unwrap();
        record
    }

    /// Pseudo-random numbers, the same in each run.
    struct Random(u64);

    impl Random {
        fn below(&mut self, bound: usize) -> usize {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            (self.0 % bound as u64) as usize
        }
        fn bytes(&mut self, len: usize) -> Vec<u8> {
            (0..len).map(|_| self.below(256) as u8).collect()
        }
    }

    #[test]
    fn what_was_sealed_is_opened_in_order_over_many_keys_whatever_its_length() {
        let mut random = Random(1);
        let (mut sealer, mut opener) = pair(FEW);
        for n in 0..FEW.records_max {
            let len = [1, 15, 16, 17, 2_016, 65_535][random.below(6)];
            let plaintext = random.bytes(len);
            let mut record = sealed(&mut sealer, &plaintext);
            assert_eq!(record.len(), len + OVERHEAD);
            assert_eq!(opener.open(&mut record), Ok(&plaintext[..]), "record {n}");
        }
    }

    /// An empty record would cost the receiver work without a result.
    #[test]
    fn a_record_with_nothing_in_it_is_none() {
        let (mut sealer, mut opener) = pair(FEW);
        assert_eq!(sealer.seal(b"", &mut Vec::new()), Err(SealError::Length { len: 0 }));
        let mut empty = Header { len: 0, epoch: 0, seq: 0 }.bytes().to_vec();
        empty.extend([0; TAG_LEN]);
        assert_eq!(opener.open(&mut empty), Err(SealError::Length { len: OVERHEAD }));
    }

    /// Every nonce of both directions of several clients, under every key, is used once.
    #[test]
    fn no_nonce_comes_twice_under_a_key_over_directions_epochs_and_clients() {
        let exporter = |into: &mut [u8], context: &[u8]| {
            let prk = Prk::new_less_safe(HKDF_SHA384, b"a session");
            let info = [EXPORTER_LABEL, context];
            prk.expand(&info, Length(into.len())).and_then(|okm| okm.fill(into))
        };
        let mut secrets = Vec::new();
        for client in [1, 2, 3] {
            let client = ClientId::new(client).unwrap();
            let both = SealSecrets::export(client, exporter).unwrap();
            secrets.extend([both.to_primary, both.to_client]);
        }
        let mut keys = HashSet::new();
        for mut secret in secrets {
            for _ in 0..20 {
                let (key, iv, next) = derive(&secret);
                // the ciphertext of zeros distinguishes the keys
                let mut mark = [0; 32];
                let nonce = Nonce::assume_unique_for_key([0; NONCE_LEN]);
                let tag = key.seal_in_place_separate_tag(nonce, Aad::empty(), &mut mark);
                assert!(tag.is_ok());
                assert!(keys.insert(mark), "a key comes twice");
                let mut nonces = HashSet::new();
                for seq in (0..2_000).chain(RECORDS_MAX - 2_000..RECORDS_MAX) {
                    assert!(nonces.insert(nonce_of(&iv, seq)), "nonce {seq} comes twice");
                }
                secret = next;
            }
        }
    }

    #[test]
    fn the_number_of_a_record_is_used_up_even_if_nobody_opens_it() {
        let mut sealer = pair(FEW).0;
        let numbers: HashSet<[u8; 12]> = (0..FEW.records_max)
            .map(|_| sealed(&mut sealer, b"x")[4..HEADER_LEN].try_into().unwrap())
            .collect();
        assert_eq!(numbers.len() as u64, FEW.records_max);
    }

    #[test]
    fn both_ends_change_the_key_at_the_bound_and_the_same_bytes_look_different_then() {
        let (mut sealer, mut opener) = pair(FEW);
        let mut epochs = Vec::new();
        for _ in 0..3 * FEW.records_per_key {
            let mut record = sealed(&mut sealer, b"the same");
            epochs.push(Header::of(record.first_chunk().unwrap()).unwrap().epoch);
            opener.open(&mut record).unwrap();
            assert_eq!(opener.direction.epoch, sealer.0.epoch);
        }
        assert_eq!(epochs, [0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2]);
        // the key of an epoch opens no record of another epoch, even if the header names that epoch
        let (mut sealer, mut opener) = pair(Bounds { records_per_key: 1, ..FEW });
        sealed(&mut sealer, b"first");
        let mut second = sealed(&mut sealer, b"second");
        let header = Header { len: 6, epoch: 0, seq: 0 };
        second[..HEADER_LEN].copy_from_slice(&header.bytes());
        assert_eq!(opener.open(&mut second), Err(SealError::Forged));
    }

    #[test]
    fn a_channel_ends_before_its_numbers_wrap() {
        let (mut sealer, mut opener) = pair(FEW);
        for _ in 0..FEW.records_max {
            let mut record = sealed(&mut sealer, b"x");
            opener.open(&mut record).unwrap();
        }
        for _ in 0..3 {
            assert_eq!(sealer.seal(b"x", &mut Vec::new()), Err(SealError::Exhausted));
        }
        let header = Header { len: 1, epoch: 12, seq: FEW.records_max }.bytes();
        let mut more = [&header[..], &[0; TAG_LEN + 1]].concat();
        assert_eq!(opener.open(&mut more), Err(SealError::Exhausted));
    }

    #[test]
    fn any_bit_that_is_changed_breaks_the_channel_for_good() {
        let plaintext = Random(2).bytes(40);
        let bits = (plaintext.len() + OVERHEAD) * 8;
        for bit in 0..bits {
            let (mut sealer, mut opener) = pair(FEW);
            let good = sealed(&mut sealer, &plaintext);
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            let error = opener.open(&mut bad).unwrap_err();
            assert_eq!(opener.open(&mut good.clone()), Err(error), "bit {bit}");
            let mut next = sealed(&mut sealer, b"next");
            assert_eq!(opener.open(&mut next), Err(error), "bit {bit}");
        }
    }

    #[test]
    fn a_record_that_is_cut_or_grown_is_refused() {
        let record = sealed(&mut pair(FEW).0, &[9; 40]);
        for len in 0..record.len() {
            let refused = pair(FEW).1.open(&mut record[..len].to_vec()).unwrap_err();
            assert_eq!(refused, SealError::Length { len }, "{len}");
        }
        for more in [1, 16, 70_000] {
            let mut grown = record.clone();
            grown.resize(record.len() + more, 0);
            assert!(matches!(pair(FEW).1.open(&mut grown), Err(SealError::Length { .. })));
        }
        let too_long = vec![0; 65_536];
        let refused = pair(FEW).0.seal(&too_long, &mut Vec::new());
        assert_eq!(refused, Err(SealError::Length { len: 65_536 }));
    }

    /// Each history that is not the order in which the records were sealed ends at the first record
    /// out of order.
    #[test]
    fn replays_reorderings_and_gaps_are_refused() {
        let mut random = Random(3);
        for round in 0..2_000 {
            let (mut sealer, mut opener) = pair(FEW);
            let records: Vec<_> = (0..20_u8).map(|n| sealed(&mut sealer, &[n; 9])).collect();
            let history: Vec<usize> = match round % 3 {
                0 => (0..20)
                    .map(|n| if random.below(4) == 0 { random.below(20) } else { n })
                    .collect(),
                1 => (0..20).filter(|_| random.below(5) > 0).collect(),
                _ => (0..20).flat_map(|n| vec![n; 1 + random.below(6) / 5]).collect(),
            };
            let mut broken = None;
            for (due, &came) in history.iter().enumerate() {
                let opened = opener.open(&mut records[came].clone()).map(<[u8]>::to_vec);
                if broken.is_none() && due != came {
                    let (expected, came) = (due as u64, came as u64);
                    broken = Some(SealError::OutOfOrder { expected, came });
                }
                assert_eq!(opened, broken.map_or(Ok(vec![came as u8; 9]), Err), "{history:?}");
            }
        }
    }

    #[test]
    fn a_record_of_the_other_direction_or_of_another_client_is_forged() {
        let (mut sealer, _) = pair(FEW);
        let mut other = Opener::new(secret(8), FEW);
        assert_eq!(other.open(&mut sealed(&mut sealer, b"x")), Err(SealError::Forged));
    }

    #[test]
    fn bytes_that_are_no_record_never_panic() {
        let mut random = Random(4);
        for _ in 0..20_000 {
            let len = random.below(80);
            let mut bytes = random.bytes(len);
            if random.below(2) == 0 && len >= HEADER_LEN {
                bytes[..2].copy_from_slice(&[VERSION, DATA]);
                bytes[4..HEADER_LEN].fill(0);
            }
            assert!(pair(FEW).1.open(&mut bytes).is_err());
        }
    }

    /// Records made by another implementation (HKDF-Expand with SHA-384, AES-256-GCM) by the layout
    /// above.
    #[test]
    fn records_are_as_another_implementation_makes_them() {
        let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
        let known = [
            (0, "01010003000000000000000000000000747c2948fa9c52a5cfc44c13dbeb11d2262750"),
            (5, "01010003000000010000000000000005d6dbbc974f2ee4b077b9555f39a70cb711bd5a"),
            (12, "0101000300000002000000000000000ca27c61c90243439fc10705631a685da1ad8006"),
        ];
        let (mut sealer, _) = pair(FEW);
        let records: Vec<_> = (0..13).map(|_| hex(&sealed(&mut sealer, b"abc"))).collect();
        for (n, record) in known {
            assert_eq!(records[n], record, "record {n}");
        }
        let far = Bounds { records_per_key: 1 << 40, records_max: 1 << 48 };
        let (mut sealer, mut opener) = pair(far);
        (sealer.0.seq, opener.direction.seq) = ((1 << 33) + 9, (1 << 33) + 9);
        let mut record = sealed(&mut sealer, b"abc");
        assert_eq!(
            hex(&record),
            "0101000300000000000000020000000983e8cdb779d10938c6103bd03c621eaf7538b9"
        );
        assert_eq!(opener.open(&mut record), Ok(&b"abc"[..]));
    }

    #[test]
    fn another_version_or_type_is_said_to_be_unknown() {
        for at in [0, 1] {
            let (mut sealer, mut opener) = pair(FEW);
            let mut record = sealed(&mut sealer, b"abc");
            record[at] = 2;
            let (version, kind) = (record[0], record[1]);
            assert_eq!(opener.open(&mut record), Err(SealError::Unknown { version, kind }));
        }
    }
}
