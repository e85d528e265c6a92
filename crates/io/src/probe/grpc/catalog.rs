//! What descriptors say of methods and types, whoever wrote them: read with a budget, and made ready for JSON.
//!
//! Descriptors come from servers by reflection and from files of `protoc`, in any syntax and edition. All are brought to
//! one form before a library sees them: only the names, types and encodings that matter to JSON and to the wire are
//! kept, in one flat file in which every reference is known to hold. So imports that cannot be found, cycles of them and
//! options of strangers do no harm. In JSON the difference between the syntaxes is none: what is not sent is not there.
//!
//! Left out: extensions, default values (what is not sent is absent), `required` (the server says so itself), aliases
//! of enum values, and the message set format.
//!
//! Sources: google/protobuf/descriptor.proto, protobuf.dev/editions/features.

use std::collections::{BTreeMap, BTreeSet};

use prost_reflect::prost_types::field_descriptor_proto::{Label, Type};
use prost_reflect::prost_types::{
    DescriptorProto, EnumDescriptorProto, EnumValueDescriptorProto, FieldDescriptorProto, FieldOptions,
    FileDescriptorProto, MessageOptions, OneofDescriptorProto,
};
use prost_reflect::{DescriptorPool, FileDescriptor};

use super::json::Method;
use super::wire::{Fields, Value};

/// The most octets of descriptors together.
pub(super) const DESCRIPTORS_LIMIT: usize = 8 << 20;

/// The most messages, fields, enums and their values together: each costs memory, however few octets it has.
const ELEMENTS: usize = 64 << 10;

/// The most octets of a name, the whole name of a type included: an answer may repeat it many times, and so do types
/// within types.
const NAME: usize = 512;

/// How deep messages may be defined within messages.
const NESTING: usize = 32;

/// The most missing types that are told at once.
const MISSING: usize = 64;

/// What is known of a server's methods and types.
#[derive(Debug, Default)]
pub(super) struct Catalog {
    /// By `/package.Service/Method`.
    methods: BTreeMap<String, Signature>,
    services: BTreeSet<String>,
    messages: BTreeMap<String, Message>,
    enums: BTreeMap<String, Enum>,
    /// Files that were read.
    files: BTreeSet<String>,
    /// Files that these import.
    imports: BTreeSet<String>,
    octets: usize,
    elements: usize,
}

#[derive(Debug)]
struct Signature {
    input: String,
    output: String,
    streams: bool,
}

#[derive(Debug, Default)]
struct Message {
    fields: Vec<Field>,
    oneofs: Vec<String>,
    is_map_entry: bool,
}

#[derive(Debug, Default, Clone)]
struct Field {
    name: String,
    json_name: String,
    number: i32,
    repeated: bool,
    /// As in a descriptor; 0 where it is to be seen from the type's name.
    kind: i32,
    type_name: String,
    oneof: Option<i32>,
    packed: bool,
    delimited: bool,
}

/// Names of the values, by number.
type Enum = BTreeMap<i32, String>;

/// Features of editions, as far as they matter here. Presence and open enums make no difference to JSON.
#[derive(Debug, Clone, Copy)]
struct Features {
    packed: bool,
    delimited: bool,
}

impl Features {
    /// Those of a file.
    fn of(syntax: &str) -> Self {
        Self { packed: !matches!(syntax, "" | "proto2"), delimited: false }
    }

    /// As the `FeatureSet` in field `number` of `options` changes them.
    fn changed(mut self, options: &[u8], number: u32) -> Result<Self, String> {
        for field in Fields::of(options) {
            let (found, set) = field.ok_or(BROKEN)?;
            if found != number {
                continue;
            }
            for feature in Fields::of(set.bytes()) {
                match feature.ok_or(BROKEN)? {
                    (3, value) => self.packed = value.int() != 2,
                    (5, value) => self.delimited = value.int() == 2,
                    _ => {}
                }
            }
        }
        Ok(self)
    }
}

const BROKEN: &str = "a descriptor cannot be read";

impl Catalog {
    /// Reads a `FileDescriptorSet`, as `protoc --descriptor_set_out` writes it.
    pub(super) fn of_set(set: &[u8]) -> Result<Self, String> {
        let mut catalog = Self::default();
        for field in Fields::of(set) {
            if let (1, file) = field.ok_or("this is no descriptor set")? {
                catalog.add(file.bytes())?;
            }
        }
        if catalog.files.is_empty() {
            return Err("there is no descriptor in it".into());
        }
        Ok(catalog)
    }

    /// Reads a `FileDescriptorProto`. One whose name is known already changes nothing.
    pub(super) fn add(&mut self, file: &[u8]) -> Result<(), String> {
        self.octets += file.len();
        if self.octets > DESCRIPTORS_LIMIT {
            return Err(format!("the descriptors are longer than {DESCRIPTORS_LIMIT} bytes"));
        }
        let (mut name, mut package, mut syntax) = (String::new(), String::new(), String::new());
        for field in Fields::of(file) {
            match field.ok_or(BROKEN)? {
                (1, value) => name = named(value)?,
                (2, value) => package = named(value)?,
                (12, value) => syntax = named(value)?,
                _ => {}
            }
        }
        if !self.files.insert(name) {
            return Ok(());
        }
        let mut features = Features::of(&syntax);
        for field in Fields::of(file) {
            if let (8, options) = field.ok_or(BROKEN)? {
                features = features.changed(options.bytes(), 50)?;
            }
        }
        for field in Fields::of(file) {
            match field.ok_or(BROKEN)? {
                (3, value) => {
                    self.count()?;
                    self.imports.insert(named(value)?);
                }
                (4, value) => self.message(value.bytes(), &package, features, NESTING)?,
                (5, value) => self.enumeration(value.bytes(), &package)?,
                (6, value) => self.service(value.bytes(), &package)?,
                _ => {}
            }
        }
        Ok(())
    }

    /// Counts an element.
    fn count(&mut self) -> Result<(), String> {
        self.elements += 1;
        if self.elements > ELEMENTS {
            return Err(format!("the descriptors have more than {ELEMENTS} elements"));
        }
        Ok(())
    }

    fn message(
        &mut self,
        message: &[u8],
        scope: &str,
        features: Features,
        depth: usize,
    ) -> Result<(), String> {
        self.count()?;
        let depth = depth.checked_sub(1).ok_or("the descriptors are nested too deep")?;
        let (mut name, mut features, mut is_map_entry) = (String::new(), features, false);
        for field in Fields::of(message) {
            match field.ok_or(BROKEN)? {
                (1, value) => name = within(scope, value)?,
                (7, options) => {
                    features = features.changed(options.bytes(), 12)?;
                    is_map_entry = flag(options.bytes(), 7)?.unwrap_or(is_map_entry);
                }
                _ => {}
            }
        }
        let mut oneofs = Vec::new();
        let mut oneof_features = Vec::new();
        for field in Fields::of(message) {
            if let (8, oneof) = field.ok_or(BROKEN)? {
                self.count()?;
                let (mut own, mut title) = (features, String::new());
                for field in Fields::of(oneof.bytes()) {
                    match field.ok_or(BROKEN)? {
                        (1, value) => title = named(value)?,
                        (2, options) => own = own.changed(options.bytes(), 1)?,
                        _ => {}
                    }
                }
                oneofs.push(title);
                oneof_features.push(own);
            }
        }
        let mut fields = Vec::new();
        for field in Fields::of(message) {
            match field.ok_or(BROKEN)? {
                (2, value) => {
                    self.count()?;
                    fields.push(Field::read(value.bytes(), features, &oneof_features)?);
                }
                (3, value) => self.message(value.bytes(), &name, features, depth)?,
                (4, value) => self.enumeration(value.bytes(), &name)?,
                _ => {}
            }
        }
        let mut message = Message { fields, oneofs, is_map_entry };
        message.tidy();
        self.messages.entry(name).or_insert(message);
        Ok(())
    }

    fn enumeration(&mut self, from: &[u8], scope: &str) -> Result<(), String> {
        self.count()?;
        let (mut name, mut values, mut names) = (String::new(), Enum::new(), BTreeSet::new());
        for field in Fields::of(from) {
            match field.ok_or(BROKEN)? {
                (1, value) => name = within(scope, value)?,
                (2, value) => {
                    self.count()?;
                    let (mut title, mut number) = (String::new(), 0);
                    for field in Fields::of(value.bytes()) {
                        match field.ok_or(BROKEN)? {
                            (1, value) => title = named(value)?,
                            (2, value) => number = value.int(),
                            _ => {}
                        }
                    }
                    if names.insert(title.clone()) {
                        values.entry(number).or_insert(title);
                    }
                }
                _ => {}
            }
        }
        self.enums.entry(name).or_insert(values);
        Ok(())
    }

    fn service(&mut self, from: &[u8], package: &str) -> Result<(), String> {
        self.count()?;
        let mut service = String::new();
        for field in Fields::of(from) {
            if let (1, value) = field.ok_or(BROKEN)? {
                service = within(package, value)?;
            }
        }
        for field in Fields::of(from) {
            let (2, method) = field.ok_or(BROKEN)? else { continue };
            self.count()?;
            let mut name = String::new();
            let mut signature = Signature { input: String::new(), output: String::new(), streams: false };
            for field in Fields::of(method.bytes()) {
                match field.ok_or(BROKEN)? {
                    (1, value) => name = named(value)?,
                    (2, value) => signature.input = absolute(value)?,
                    (3, value) => signature.output = absolute(value)?,
                    (5 | 6, value) => signature.streams |= value.int() != 0,
                    _ => {}
                }
            }
            self.methods.entry(format!("/{service}/{name}")).or_insert(signature);
        }
        self.services.insert(service);
        Ok(())
    }

    /// Every method that is known, as `/package.Service/Method`.
    pub(super) fn paths(&self) -> impl Iterator<Item = &str> {
        self.methods.keys().map(String::as_str)
    }

    /// Files that were imported and neither read nor built in.
    pub(super) fn unread(&self) -> impl Iterator<Item = &str> {
        let own = DescriptorPool::global();
        let unread = self.imports.difference(&self.files).map(String::as_str);
        unread.filter(move |name| own.get_file_by_name(name).is_none())
    }

    /// What is not known of `/package.Service/Method` yet: its service, or types that it needs, a few at a time.
    ///
    /// # Errors
    /// The service is known and has no such method.
    pub(super) fn missing(&self, path: &str) -> Result<BTreeSet<String>, String> {
        let Some(signature) = self.methods.get(path) else {
            let service = service_of(path);
            if self.services.contains(service) {
                return Err(self.no_method(path));
            }
            return Ok(BTreeSet::from([service.to_owned()]));
        };
        let (_, mut missing) = self.reach([signature.input.as_str(), &signature.output]);
        missing.truncate(MISSING);
        Ok(missing.into_iter().map(str::to_owned).collect())
    }

    fn no_method(&self, path: &str) -> String {
        let service = service_of(path);
        let method = path.rsplit('/').next().unwrap_or_default();
        if !self.services.contains(service) {
            let known = self.services.iter().filter(|s| !s.is_empty()).take(8).map(String::as_str);
            let known = known.collect::<Vec<_>>().join(", ");
            let known = if known.is_empty() { "none".into() } else { known };
            return format!("there is no service {service} (there is: {known})");
        }
        let prefix = format!("/{service}/");
        let known = self.methods.range(prefix.clone()..).map(|(path, _)| path);
        let known = known.map_while(|p| p.strip_prefix(&prefix)).take(8).collect::<Vec<_>>().join(", ");
        format!("{service} has no method {method} (it has: {known})")
    }

    /// Message types and enums that `roots` refer to, themselves included, and those of them that are not known.
    fn reach<'a>(&'a self, roots: impl IntoIterator<Item = &'a str>) -> (BTreeSet<&'a str>, Vec<&'a str>) {
        let (mut reached, mut missing) = (BTreeSet::new(), Vec::new());
        let mut next: Vec<&str> = roots.into_iter().collect();
        while let Some(name) = next.pop() {
            if !reached.insert(name) {
                continue;
            }
            match self.messages.get(name) {
                _ if built_in(name).is_some() => {}
                Some(message) => {
                    let names = message.fields.iter().map(|f| f.type_name.as_str());
                    next.extend(names.filter(|name| !name.is_empty()));
                }
                None if self.enums.contains_key(name) => {}
                None => missing.push(name),
            }
        }
        (reached, missing)
    }

    /// The method's types, ready for JSON.
    ///
    /// # Errors
    /// There is no such method, it streams, or what it needs is missing or cannot be.
    pub(super) fn method(&self, path: &str) -> Result<Method, String> {
        let signature = self.methods.get(path).ok_or_else(|| self.no_method(path))?;
        if signature.streams {
            return Err(format!("{path} is a streaming method: only unary ones can be checked"));
        }
        let roots = [signature.input.as_str(), &signature.output];
        let (mut reached, missing) = self.reach(roots);
        if let Some(name) = missing.first() {
            return Err(format!("{path} needs the type {name}, which no descriptor defines"));
        }
        if reached.contains("google.protobuf.Any") {
            // It may hold anything that is known.
            reached = self.reach(self.messages.keys().map(String::as_str)).0;
        }
        let mut pool = DescriptorPool::new();
        let mut file = FileDescriptorProto {
            name: Some("standfast".into()),
            syntax: Some("proto2".into()),
            ..FileDescriptorProto::default()
        };
        for name in reached {
            if let Some(own) = built_in(name) {
                add_file(&own, &mut pool)?;
                file.dependency.push(own.name().to_owned());
            } else if let Some(message) = self.messages.get(name) {
                file.message_type.push(self.descriptor(name, message));
            } else if let Some(values) = self.enums.get(name) {
                file.message_type.push(enum_descriptor(name, values));
            }
        }
        file.dependency.sort_unstable();
        file.dependency.dedup();
        pool.add_file_descriptor_proto(file)
            .map_err(|e| format!("the descriptors contradict themselves: {e}"))?;
        let found = |name: &String| {
            pool.get_message_by_name(name)
                .ok_or_else(|| format!("{path} needs the type {name}, which is no message"))
        };
        Ok(Method { input: found(&signature.input)?, output: found(&signature.output)? })
    }

    fn descriptor(&self, name: &str, message: &Message) -> DescriptorProto {
        let fields = message.fields.iter().filter_map(|field| self.field(field)).collect::<Vec<_>>();
        let map_entry = message.is_map_entry && is_map_entry(&fields);
        DescriptorProto {
            name: Some(name.to_owned()),
            field: fields,
            oneof_decl: message
                .oneofs
                .iter()
                .map(|name| OneofDescriptorProto { name: Some(name.clone()), options: None })
                .collect(),
            options: map_entry.then(|| MessageOptions { map_entry: Some(true), ..MessageOptions::default() }),
            ..DescriptorProto::default()
        }
    }

    /// The field, if what it refers to is known.
    fn field(&self, field: &Field) -> Option<FieldDescriptorProto> {
        let mut type_name = None;
        let kind = if field.type_name.is_empty() {
            let kind = Type::try_from(field.kind).ok()?;
            (!matches!(kind, Type::Message | Type::Group | Type::Enum)).then_some(kind)?
        } else if let Some(own) = built_in_kind(&field.type_name) {
            type_name = Some(format!(".{}", field.type_name));
            own
        } else if let Some(message) = self.messages.get(&field.type_name) {
            type_name = Some(format!(".{}", field.type_name));
            // A map is never a group.
            if field.delimited && !message.is_map_entry { Type::Group } else { Type::Message }
        } else {
            self.enums.get(&field.type_name)?;
            type_name = Some(format!(".{}.{ENUM}", enum_scope(&field.type_name)));
            Type::Enum
        };
        let scalar = !matches!(kind, Type::Message | Type::Group | Type::String | Type::Bytes);
        Some(FieldDescriptorProto {
            name: Some(field.name.clone()),
            json_name: Some(field.json_name.clone()),
            number: Some(field.number),
            label: Some(if field.repeated { Label::Repeated } else { Label::Optional }.into()),
            r#type: Some(kind.into()),
            type_name,
            oneof_index: field.oneof,
            options: (field.packed && field.repeated && scalar)
                .then(|| FieldOptions { packed: Some(true), ..FieldOptions::default() }),
            ..FieldDescriptorProto::default()
        })
    }
}

impl Message {
    /// Takes out what the protocol forbids and a library would stumble over.
    fn tidy(&mut self) {
        let (mut numbers, mut names, mut json_names) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        names.extend(self.oneofs.iter().cloned());
        let oneofs = i32::try_from(self.oneofs.len()).unwrap_or(i32::MAX);
        self.fields.retain_mut(|field| {
            field.oneof = field.oneof.filter(|n| (0..oneofs).contains(n) && !field.repeated);
            (1..1 << 29).contains(&field.number)
                && !(19_000..20_000).contains(&field.number)
                && numbers.insert(field.number)
                && names.insert(field.name.clone())
                && json_names.insert(field.json_name.clone())
        });
    }
}

impl Field {
    fn read(from: &[u8], features: Features, oneofs: &[Features]) -> Result<Self, String> {
        let mut field = Self::default();
        let mut options = Vec::new();
        for part in Fields::of(from) {
            match part.ok_or(BROKEN)? {
                (1, value) => field.name = named(value)?,
                (3, value) => field.number = value.int(),
                (4, value) => field.repeated = value.int() == 3,
                (5, value) => field.kind = value.int(),
                (6, value) => field.type_name = absolute(value)?,
                (8, value) => options.push(value.bytes()),
                (9, value) => field.oneof = Some(value.int()),
                (10, value) => field.json_name = named(value)?,
                _ => {}
            }
        }
        let oneof = field.oneof.and_then(|n| oneofs.get(usize::try_from(n).ok()?));
        let mut features = oneof.copied().unwrap_or(features);
        let mut packed = None;
        for options in options {
            features = features.changed(options, 21)?;
            packed = flag(options, 2)?.or(packed);
        }
        field.packed = packed.unwrap_or(features.packed);
        field.delimited = features.delimited || field.kind == Type::Group as i32;
        if field.json_name.is_empty() {
            field.json_name = json_name(&field.name);
        }
        // What is no reference has no type name.
        if !matches!(field.kind, 0 | 10 | 11 | 14) {
            field.type_name.clear();
        }
        Ok(field)
    }
}

/// Whether these are the fields of a map's entry: a key that JSON can have, and a value.
fn is_map_entry(fields: &[FieldDescriptorProto]) -> bool {
    let single = |number| {
        fields
            .iter()
            .find(|f| f.number() == number && f.label() == Label::Optional && f.oneof_index.is_none())
    };
    let key = single(1).is_some_and(|key| {
        !matches!(
            key.r#type(),
            Type::Double | Type::Float | Type::Bytes | Type::Enum | Type::Message | Type::Group
        )
    });
    key && single(2).is_some() && fields.len() == 2
}

/// The enum's name within the message that stands for its scope.
const ENUM: &str = "E";

/// Values of an enum share the scope that it is in, so each enum is given one of its own. Its name is never seen.
fn enum_scope(name: &str) -> String {
    format!("{name} enum")
}

fn enum_descriptor(name: &str, values: &Enum) -> DescriptorProto {
    let value = |(number, name): (&i32, &String)| EnumValueDescriptorProto {
        name: Some(name.clone()),
        number: Some(*number),
        options: None,
    };
    let mut value: Vec<_> = values.iter().map(value).collect();
    if value.is_empty() {
        value.push(EnumValueDescriptorProto { name: Some(String::new()), number: Some(0), options: None });
    }
    let inner = EnumDescriptorProto { name: Some(ENUM.into()), value, ..EnumDescriptorProto::default() };
    DescriptorProto { name: Some(enum_scope(name)), enum_type: vec![inner], ..DescriptorProto::default() }
}

/// The file of a type that is built in: one with a form of its own in JSON, of which no server has another.
fn built_in(name: &str) -> Option<FileDescriptor> {
    name.starts_with("google.protobuf.").then_some(())?;
    let own = DescriptorPool::global();
    let message = own.get_message_by_name(name).map(|m| m.parent_file());
    message.or_else(|| own.get_enum_by_name(name).map(|e| e.parent_file()))
}

fn built_in_kind(name: &str) -> Option<Type> {
    built_in(name)?;
    let message = DescriptorPool::global().get_message_by_name(name).is_some();
    Some(if message { Type::Message } else { Type::Enum })
}

/// Adds a built-in file, after those that it imports.
fn add_file(file: &FileDescriptor, pool: &mut DescriptorPool) -> Result<(), String> {
    if pool.get_file_by_name(file.name()).is_some() {
        return Ok(());
    }
    for import in file.dependencies() {
        add_file(&import, pool)?;
    }
    pool.add_file_descriptor_proto(file.file_descriptor_proto().clone()).map_err(|e| e.to_string())
}

/// The last boolean in field `number` of `options`.
fn flag(options: &[u8], number: u32) -> Result<Option<bool>, String> {
    let mut found = None;
    for field in Fields::of(options) {
        if let (n, Value::Number(value)) = field.ok_or(BROKEN)?
            && n == number
        {
            found = Some(value != 0);
        }
    }
    Ok(found)
}

/// The service in `/package.Service/Method`.
fn service_of(path: &str) -> &str {
    path.trim_start_matches('/').split('/').next().unwrap_or_default()
}

/// A name, if it is no longer than [`NAME`].
fn named(value: Value<'_>) -> Result<String, String> {
    short(value.bytes().len())?;
    let name = value.text();
    short(name.len())?;
    Ok(name)
}

fn short(length: usize) -> Result<(), String> {
    let fine = (length <= NAME).then_some(());
    fine.ok_or_else(|| format!("the descriptors have a name that is longer than {NAME} bytes"))
}

/// The whole name of what is named so in `scope`.
fn within(scope: &str, name: Value<'_>) -> Result<String, String> {
    let name = named(name)?;
    if scope.is_empty() {
        return Ok(name);
    }
    short(scope.len() + 1 + name.len())?;
    Ok(format!("{scope}.{name}"))
}

/// A type's name without the dot that says it is a whole one.
fn absolute(value: Value<'_>) -> Result<String, String> {
    let text = named(value)?;
    Ok(text.strip_prefix('.').map(str::to_owned).unwrap_or(text))
}

/// The name of a field in JSON where its descriptor has none.
fn json_name(name: &str) -> String {
    let mut upper = false;
    let mut out = String::with_capacity(name.len());
    for c in name.chars() {
        match (c, std::mem::replace(&mut upper, c == '_')) {
            ('_', _) => {}
            (c, true) => out.push(c.to_ascii_uppercase()),
            (c, false) => out.push(c),
        }
    }
    out
}
