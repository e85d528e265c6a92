//! Octets that are no text: written in hexadecimal, or in base64.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value as JsonValue, json};

use super::super::read::{Complaint, FromText};

/// Octets as pairs of hexadecimal digits, with or without blanks between them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Hex(pub(crate) Vec<u8>);

impl FromText for Hex {
    const WHAT: &'static str = "octets in hexadecimal";
    const EMPTY_IS_ABSENT: bool = true;
    fn from_text(text: &str) -> Result<Self, Complaint> {
        let not =
            |what: &str| Complaint::new(what).help("write two digits for each octet, in quotes: \"0a1b 2c\"");
        let digits: Vec<u8> = text.bytes().filter(|b| !b.is_ascii_whitespace()).collect();
        let digit = |b: u8| char::from(b).to_digit(16).and_then(|d| u8::try_from(d).ok());
        let (pairs, odd) = digits.as_chunks::<2>();
        let octets = pairs.iter().map(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?)).collect();
        match octets {
            None => Err(not("is not hexadecimal")),
            Some(_) if !odd.is_empty() => Err(not("has half an octet at its end")),
            Some(octets) => Ok(Self(octets)),
        }
    }
    fn text_schema() -> JsonValue {
        json!({ "type": ["string", "number"] })
    }
    fn text_kind() -> String {
        "hexadecimal".into()
    }
}

/// Octets in base64 (RFC 4648 §4).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Base64(pub(crate) Vec<u8>);

impl FromText for Base64 {
    const WHAT: &'static str = "octets in base64";
    const EMPTY_IS_ABSENT: bool = true;
    fn from_text(text: &str) -> Result<Self, Complaint> {
        let bare: String = text.split_ascii_whitespace().collect();
        STANDARD.decode(bare).map(Self).map_err(|_| {
            Complaint::new("is not base64").help("write what `base64` prints, with its `=` at the end")
        })
    }
    fn text_schema() -> JsonValue {
        json!({ "type": ["string", "number"] })
    }
    fn text_kind() -> String {
        "base64".into()
    }
}
