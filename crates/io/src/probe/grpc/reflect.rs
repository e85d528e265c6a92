//! Descriptors from the server itself: the reflection service, v1 or, where that is all there is, v1alpha.
//!
//! Each round of questions is one call, all of them sent before any answer, so that nothing depends on how a server
//! interleaves the two. A server may answer with what was not asked, with much more, or with nothing: rounds, questions
//! and octets are bounded, and the run's time bounds the rest.
//!
//! Source: grpc/grpc doc/server-reflection.md and src/proto/grpc/reflection/v1/reflection.proto.

use std::collections::BTreeSet;

use super::catalog::{Catalog, DESCRIPTORS_LIMIT};
use super::wire::{Fields, frame, put};
use super::{Answer, Connection, NOT_FOUND};
use crate::probe::run::{Doing, Failure};

/// The method, and what it was called before it was finished; the messages are the same.
const VERSIONS: [&str; 2] = [
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
];

/// The most rounds of questions: imports of imports, and one more for each that a server does not know.
const ROUNDS: usize = 64;

/// The most questions in a round.
const QUESTIONS: usize = 256;

/// What is asked: a file by name, or the file that defines a symbol.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Question {
    File(String),
    Symbol(String),
}

impl Question {
    /// A `ServerReflectionRequest`.
    fn encode(&self, out: &mut Vec<u8>) {
        let mut message = Vec::new();
        match self {
            Self::File(name) => put(3, name.as_bytes(), &mut message),
            Self::Symbol(name) => put(4, name.as_bytes(), &mut message),
        }
        frame(&message, out);
    }
}

/// Asks the server for what `path` needs.
pub(super) async fn fetch(
    connection: &mut Connection<'_>,
    path: &str,
    doing: &Doing<'_>,
) -> Result<Catalog, Failure> {
    let mut catalog = Catalog::default();
    let mut asked = BTreeSet::new();
    let mut version = VERSIONS[0];
    let mut refusal = String::new();
    let mut room = DESCRIPTORS_LIMIT;
    for _ in 0..ROUNDS {
        let missing = catalog.missing(path).map_err(Failure::Bad)?;
        let Some(lack) = missing.first().cloned() else { return Ok(catalog) };
        let questions = questions(&catalog, missing, &mut asked);
        if questions.is_empty() {
            return Err(Failure::Bad(format!("the server's reflection does not know {lack}{refusal}")));
        }
        doing.set("asking the server's reflection");
        let mut answer = ask(connection, version, &questions, room, doing).await?;
        if answer.is_unimplemented() && version == VERSIONS[0] {
            version = VERSIONS[1];
            answer = ask(connection, version, &questions, room, doing).await?;
        }
        if answer.is_unimplemented() {
            return Err(Failure::Bad(
                "the server has no reflection service: give the check a descriptor set".into(),
            ));
        }
        if answer.messages.len() < questions.len() {
            let status = answer.status()?;
            if status.code != NOT_FOUND {
                return Err(Failure::Bad(format!("the server's reflection said {status}")));
            }
            // Some servers end the call at the first thing that they do not know: the rest is asked again.
            refusal = format!(" ({status})");
            for question in questions.iter().skip(answer.messages.len() + 1) {
                asked.remove(question);
            }
        }
        for message in answer.messages {
            room = room.saturating_sub(message.len());
            if let Some(said) = take(&message, &mut catalog).map_err(Failure::Bad)? {
                refusal = format!(" ({said})");
            }
        }
    }
    Err(Failure::Bad(format!("the server's descriptors are not complete after {ROUNDS} rounds of questions")))
}

/// What is to be asked: imports first, each of which comes once, and then what none of them had.
fn questions(catalog: &Catalog, missing: BTreeSet<String>, asked: &mut BTreeSet<Question>) -> Vec<Question> {
    let imports = catalog.unread().map(|name| Question::File(name.to_owned()));
    let mut questions: Vec<_> = imports.filter(|q| !asked.contains(q)).take(QUESTIONS).collect();
    if questions.is_empty() {
        let symbols = missing.into_iter().map(Question::Symbol);
        questions = symbols.filter(|q| !asked.contains(q)).take(QUESTIONS).collect();
    }
    asked.extend(questions.iter().cloned());
    questions
}

async fn ask(
    connection: &mut Connection<'_>,
    version: &str,
    questions: &[Question],
    room: usize,
    doing: &Doing<'_>,
) -> Result<Answer, Failure> {
    let mut body = Vec::new();
    for question in questions {
        question.encode(&mut body);
    }
    connection.call(version, body.into(), questions.len(), room, doing).await
}

/// Puts what a `ServerReflectionResponse` holds into `catalog`; tells the error in it, if it is one.
pub(super) fn take(message: &[u8], catalog: &mut Catalog) -> Result<Option<String>, String> {
    let broken = || "the server's reflection answer cannot be read".to_owned();
    for field in Fields::of(message) {
        match field.ok_or_else(broken)? {
            (4, files) => {
                for file in Fields::of(files.bytes()) {
                    if let (1, file) = file.ok_or_else(broken)? {
                        catalog.add(file.bytes())?;
                    }
                }
            }
            (7, error) => {
                let mut said = String::new();
                for field in Fields::of(error.bytes()) {
                    if let (2, value) = field.ok_or_else(broken)? {
                        said = value.text().chars().take(100).collect();
                    }
                }
                return Ok(Some(said));
            }
            _ => {}
        }
    }
    Ok(None)
}
