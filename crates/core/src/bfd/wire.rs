//! BFD control packets (RFC 5880 §4): octets to values and back, and what makes a packet one to drop.
//!
//! It knows no session: whether a packet is for one, and what it does there, is decided above. A packet has at most
//! [`MAX_LEN`] octets; whatever follows in a datagram is ignored (§6.8.6).

use std::fmt;
use std::time::Duration;

use sha1::{Digest as _, Sha1};
use subtle::ConstantTimeEq as _;

use super::State;
use crate::plan::BfdAuth;

/// Octets of a packet without authentication.
const LEN: usize = 24;
/// Octets of an authentication section with SHA1.
const SHA1_LEN: usize = 28;
/// Octets of the longest packet that is sent.
pub const MAX_LEN: usize = LEN + SHA1_LEN;
/// Where the digest, or the key while one is made, stands in a packet with SHA1.
const DIGEST: usize = LEN + 8;
/// Octets of a digest, and of the longest key.
pub const KEY_LEN: usize = 20;

const POLL: u8 = 0x20;
const FINAL: u8 = 0x10;
const INDEPENDENT: u8 = 0x08;
const AUTHENTICATED: u8 = 0x04;
const DEMAND: u8 = 0x02;
const MULTIPOINT: u8 = 0x01;
const KEYED_SHA1: u8 = 4;
const METICULOUS_SHA1: u8 = 5;

/// Why a session is, or last went, down (RFC 5880 §4.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Diagnostic(pub u8);

impl Diagnostic {
    /// Nothing to say.
    pub const NONE: Self = Self(0);
    /// Nothing was heard for the detection time.
    pub const EXPIRED: Self = Self(1);
    /// The other end says that it is down.
    pub const SIGNALLED: Self = Self(3);
    /// Somebody switched it off.
    pub const ADMIN_DOWN: Self = Self(7);
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            0 => "no diagnostic",
            1 => "control detection time expired",
            2 => "echo function failed",
            3 => "neighbor signaled session down",
            4 => "forwarding plane reset",
            5 => "path down",
            6 => "concatenated path down",
            7 => "administratively down",
            8 => "reverse concatenated path down",
            n => return write!(f, "diagnostic {n}"),
        })
    }
}

/// A control packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packet {
    /// Why the sender is, or last went, down.
    pub diagnostic: Diagnostic,
    /// The sender's state.
    pub state: State,
    /// The sender wants an answer with [`Self::is_final`].
    pub poll: bool,
    /// It answers a poll.
    pub is_final: bool,
    /// The sender's BFD lives on when its control plane does not.
    pub control_plane_independent: bool,
    /// The sender wants no periodic packets while both ends are up.
    pub demand: bool,
    /// Packets that may be missed before the sender is held for dead; not 0.
    pub multiplier: u8,
    /// The sender's number of the session; not 0.
    pub my_discriminator: u32,
    /// The receiver's number of the session; 0 if the sender does not know it.
    pub your_discriminator: u32,
    /// The shortest time between packets that the sender would send.
    pub desired_min_tx: Duration,
    /// The shortest time between packets that the sender can take; zero: it wants none.
    pub required_min_rx: Duration,
    /// The same of echo packets; zero: it offers no echo.
    pub required_min_echo_rx: Duration,
}

/// An authentication section with SHA1, as received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Authentication {
    /// Whether it is the meticulous kind.
    pub meticulous: bool,
    /// Number of the key.
    pub key_id: u8,
    /// Sequence number.
    pub sequence: u32,
}

/// Why a packet was dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Refusal {
    /// It travelled too far: its hop limit is less than the session's, or unknown (RFC 5881 §5).
    Hops,
    /// It is too short for what it says it is.
    Length,
    /// Not version 1.
    Version,
    /// A multiplier of 0.
    Multiplier,
    /// The bit for multipoint is set.
    Multipoint,
    /// The sender's discriminator is 0.
    MyDiscriminator,
    /// Our discriminator is 0 although the sender is neither down nor administratively down.
    YourDiscriminator,
    /// No session has this discriminator, or without one this sender.
    NoSession,
    /// The discriminator is that of a session with somebody else.
    Source,
    /// It is authenticated, or not, unlike the session; or in another way.
    AuthType,
    /// Another key's number.
    AuthKey,
    /// A sequence number that is used up, or too far ahead.
    AuthSequence,
    /// The digest is another one: not the same key.
    AuthDigest,
    /// The session is administratively down.
    AdminDown,
    /// It asks for a detection time of many minutes, in which nobody would notice a death.
    Slow,
}

impl Refusal {
    /// Every reason, in order.
    pub const ALL: [Self; 15] = [
        Self::Hops,
        Self::Length,
        Self::Version,
        Self::Multiplier,
        Self::Multipoint,
        Self::MyDiscriminator,
        Self::YourDiscriminator,
        Self::NoSession,
        Self::Source,
        Self::AuthType,
        Self::AuthKey,
        Self::AuthSequence,
        Self::AuthDigest,
        Self::AdminDown,
        Self::Slow,
    ];

    /// Its name in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Hops => "hops",
            Self::Length => "length",
            Self::Version => "version",
            Self::Multiplier => "multiplier",
            Self::Multipoint => "multipoint",
            Self::MyDiscriminator => "my_discriminator",
            Self::YourDiscriminator => "your_discriminator",
            Self::NoSession => "no_session",
            Self::Source => "source",
            Self::AuthType => "auth_type",
            Self::AuthKey => "auth_key",
            Self::AuthSequence => "auth_sequence",
            Self::AuthDigest => "auth_digest",
            Self::AdminDown => "admin_down",
            Self::Slow => "slow",
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Hops => "its packets come from too many hops away",
            Self::Length => "its packets are cut off",
            Self::Version => "its packets are of another version",
            Self::Multiplier => "its detection multiplier is 0",
            Self::Multipoint => "its packets are multipoint",
            Self::MyDiscriminator => "its discriminator is 0",
            Self::YourDiscriminator => "its packets do not say which session they are of",
            Self::NoSession => "its packets are of no session",
            Self::Source => "its packets are of another's session",
            Self::AuthType => "only one end authenticates its packets, or each in another way",
            Self::AuthKey => "its packets have another key_id",
            Self::AuthSequence => "its sequence numbers are not the next ones",
            Self::AuthDigest => "its packets are made with another key",
            Self::AdminDown => "the session is administratively down",
            Self::Slow => "its interval times its multiplier is more than 5 minutes",
        })
    }
}

impl Packet {
    /// Reads the packet at the start of a datagram, without regard to a session, and its authentication section (§6.8.6).
    ///
    /// # Errors
    /// The first rule that it breaks, in the order of the RFC.
    pub fn decode(octets: &[u8]) -> Result<(Self, Option<Authentication>), Refusal> {
        let (Some(&[first, flags, multiplier, length]), true) = (octets.first_chunk(), octets.len() >= LEN)
        else {
            return Err(Refusal::Length);
        };
        if first >> 5 != 1 {
            return Err(Refusal::Version);
        }
        let length = usize::from(length);
        let authenticated = flags & AUTHENTICATED != 0;
        if length < if authenticated { LEN + 2 } else { LEN } || length > octets.len() {
            return Err(Refusal::Length);
        }
        let packet = Self {
            diagnostic: Diagnostic(first & 0x1f),
            state: State::of_bits(flags >> 6),
            poll: flags & POLL != 0,
            is_final: flags & FINAL != 0,
            control_plane_independent: flags & INDEPENDENT != 0,
            demand: flags & DEMAND != 0,
            multiplier,
            my_discriminator: word(octets, 4),
            your_discriminator: word(octets, 8),
            desired_min_tx: micros(word(octets, 12)),
            required_min_rx: micros(word(octets, 16)),
            required_min_echo_rx: micros(word(octets, 20)),
        };
        if multiplier == 0 {
            return Err(Refusal::Multiplier);
        }
        if flags & MULTIPOINT != 0 {
            return Err(Refusal::Multipoint);
        }
        if packet.my_discriminator == 0 {
            return Err(Refusal::MyDiscriminator);
        }
        if packet.your_discriminator == 0 && !matches!(packet.state, State::Down | State::AdminDown) {
            return Err(Refusal::YourDiscriminator);
        }
        let section = authenticated.then(|| Authentication::decode(&octets[LEN..length])).transpose()?;
        Ok((packet, section))
    }

    /// Writes it, authenticated with `auth` and this sequence number if there is one.
    pub fn encode(&self, auth: Option<(&BfdAuth, u32)>) -> Vec<u8> {
        let flag = |on: bool, bit: u8| if on { bit } else { 0 };
        let mut octets = vec![
            1 << 5 | self.diagnostic.0 & 0x1f,
            (self.state as u8) << 6
                | flag(self.poll, POLL)
                | flag(self.is_final, FINAL)
                | flag(self.control_plane_independent, INDEPENDENT)
                | flag(auth.is_some(), AUTHENTICATED)
                | flag(self.demand, DEMAND),
            self.multiplier,
            // Both constants fit.
            if auth.is_some() { MAX_LEN as u8 } else { LEN as u8 },
        ];
        let words = [
            self.my_discriminator,
            self.your_discriminator,
            to_micros(self.desired_min_tx),
            to_micros(self.required_min_rx),
            to_micros(self.required_min_echo_rx),
        ];
        octets.extend(words.into_iter().flat_map(u32::to_be_bytes));
        if let Some((auth, sequence)) = auth {
            let kind = if auth.meticulous { METICULOUS_SHA1 } else { KEYED_SHA1 };
            octets.extend([kind, SHA1_LEN as u8, auth.key_id, 0]);
            octets.extend(sequence.to_be_bytes());
            octets.extend([0; KEY_LEN]);
            let digest = digest(&octets, auth);
            octets[DIGEST..].copy_from_slice(&digest);
        }
        octets
    }
}

impl Authentication {
    /// Reads a section: `octets` are all that the packet says it has.
    fn decode(octets: &[u8]) -> Result<Self, Refusal> {
        let &[kind, length, ..] = octets else { return Err(Refusal::Length) };
        let meticulous = match kind {
            KEYED_SHA1 => false,
            METICULOUS_SHA1 => true,
            _ => return Err(Refusal::AuthType),
        };
        if usize::from(length) != SHA1_LEN || octets.len() != SHA1_LEN {
            return Err(Refusal::Length);
        }
        Ok(Self { meticulous, key_id: octets[2], sequence: word(octets, 4) })
    }
}

/// Whether `octets`, a packet that was [decoded](Packet::decode) with a section, was made with this key. The time that it takes
/// says nothing of where they differ.
pub fn is_authentic(octets: &[u8], auth: &BfdAuth) -> bool {
    let Some(octets) = octets.first_chunk::<MAX_LEN>() else { return false };
    digest(octets, auth).ct_eq(&octets[DIGEST..]).into()
}

/// The digest of a packet with the key, padded with zeroes, in the place of the digest (§6.7.4).
fn digest(octets: &[u8], auth: &BfdAuth) -> [u8; KEY_LEN] {
    let mut key = [0; KEY_LEN];
    let given = auth.key.reveal().as_bytes();
    let length = given.len().min(KEY_LEN);
    key[..length].copy_from_slice(&given[..length]);
    let mut sha1 = Sha1::new();
    sha1.update(&octets[..DIGEST]);
    sha1.update(key);
    sha1.finalize().into()
}

/// Four octets at `at`; callers know that they are there.
fn word(octets: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&octets[at..at + 4]);
    u32::from_be_bytes(word)
}

const fn micros(n: u32) -> Duration {
    Duration::from_micros(n as u64)
}

fn to_micros(d: Duration) -> u32 {
    u32::try_from(d.as_micros()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Secret;

    fn packet() -> Packet {
        Packet {
            diagnostic: Diagnostic::EXPIRED,
            state: State::Up,
            poll: true,
            is_final: false,
            control_plane_independent: false,
            demand: false,
            multiplier: 3,
            my_discriminator: 0x0102_0304,
            your_discriminator: 0x0506_0708,
            desired_min_tx: Duration::from_millis(50),
            required_min_rx: Duration::from_secs(1),
            required_min_echo_rx: Duration::ZERO,
        }
    }

    fn auth(meticulous: bool) -> BfdAuth {
        BfdAuth { meticulous, key_id: 7, key: Secret::new("secret".into()) }
    }

    #[test]
    fn rfc5880_s4_1_a_packet_has_this_very_form() {
        let octets = packet().encode(None);
        let want =
            [0x21, 0xe0, 3, 24, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0xc3, 0x50, 0, 0x0f, 0x42, 0x40, 0, 0, 0, 0];
        assert_eq!(octets, want);
        assert_eq!(Packet::decode(&octets), Ok((packet(), None)));
        // Whatever follows in the datagram is not part of it.
        assert_eq!(Packet::decode(&[&octets[..], &[9; 40]].concat()), Ok((packet(), None)));
    }

    #[test]
    fn rfc5880_s4_4_an_authentic_packet_is_one_made_with_the_same_key() {
        for meticulous in [false, true] {
            let octets = packet().encode(Some((&auth(meticulous), 0x0a0b_0c0d)));
            assert_eq!(octets.len(), 52);
            assert_eq!(octets[24..32], [4 + u8::from(meticulous), 28, 7, 0, 0x0a, 0x0b, 0x0c, 0x0d]);
            let (read, section) = Packet::decode(&octets).unwrap();
            assert_eq!(read, packet());
            assert_eq!(section, Some(Authentication { meticulous, key_id: 7, sequence: 0x0a0b_0c0d }));
            assert!(is_authentic(&octets, &auth(meticulous)));
            for key in ["", "secreT", "secret1", "another key of many octets"] {
                assert!(!is_authentic(
                    &octets,
                    &BfdAuth { key: Secret::new(key.into()), ..auth(meticulous) }
                ));
            }
            for at in 0..octets.len() {
                let mut forged = octets.clone();
                forged[at] ^= 1;
                assert!(!is_authentic(&forged, &auth(meticulous)), "octet {at}");
            }
        }
    }

    #[test]
    fn rfc5880_s6_8_6_each_rule_refuses_what_breaks_it() {
        let plain = packet().encode(None);
        let keyed = packet().encode(Some((&auth(false), 1)));
        let changed = |from: &[u8], changes: &[(usize, u8)]| {
            let mut octets = from.to_vec();
            changes.iter().for_each(|&(at, octet)| octets[at] = octet);
            Packet::decode(&octets).unwrap_err()
        };
        assert_eq!(changed(&plain, &[(0, 0x00)]), Refusal::Version);
        assert_eq!(changed(&plain, &[(0, 0x40)]), Refusal::Version);
        assert_eq!(changed(&plain, &[(3, 23)]), Refusal::Length);
        assert_eq!(changed(&plain, &[(3, 25)]), Refusal::Length);
        assert_eq!(changed(&plain, &[(1, 0xe4)]), Refusal::Length, "no room for authentication");
        assert_eq!(changed(&plain, &[(2, 0)]), Refusal::Multiplier);
        assert_eq!(changed(&plain, &[(1, 0xe1)]), Refusal::Multipoint);
        assert_eq!(changed(&plain, &[(4, 0), (5, 0), (6, 0), (7, 0)]), Refusal::MyDiscriminator);
        let nobody = [(8, 0), (9, 0), (10, 0), (11, 0)];
        assert_eq!(changed(&plain, &nobody), Refusal::YourDiscriminator);
        for (state, ok) in [(0x00, true), (0x40, true), (0x80, false), (0xc0, false)] {
            let mut octets = plain.clone();
            octets[1] = state;
            nobody.iter().for_each(|&(at, octet)| octets[at] = octet);
            assert_eq!(Packet::decode(&octets).is_ok(), ok, "{state:#x}");
        }
        assert_eq!(changed(&keyed, &[(24, 1)]), Refusal::AuthType, "a password");
        assert_eq!(changed(&keyed, &[(24, 3)]), Refusal::AuthType, "MD5");
        assert_eq!(changed(&keyed, &[(25, 27)]), Refusal::Length);
        assert_eq!(changed(&keyed, &[(3, 51)]), Refusal::Length);
        assert_eq!(changed(&keyed, &[(3, 26)]), Refusal::Length);
        for length in 0..keyed.len() {
            assert!(Packet::decode(&keyed[..length]).is_err(), "{length} octets");
        }
    }
}
