//! Compressed records with images, which are decoded when the records are read, because no later stage can buffer
//! images of variable size.

use crate::cache::Fingerprint;
use crate::dataset::{BlockIterator, Dataset, Holding, Opening, Recipe, Stage, StreamBudget};
use crate::decode::{
    DecodeKernel, DecodePool, DecodeRecipe, ItemCap, ItemSizes, ScanOptions, StartedImage, StoredScan, encoded_bytes, scan_name,
};
use crate::fault::Fault;
use crate::meter::Meter;
use crate::ops::Op;
use crate::source::{ImageScan, ImageScans, PackedRecords, RecordPosition, RecordReader, RowIterator};
use crate::{DataError, Schema};
use plimsoll_core::Bytes;
use std::hash::Hasher;
use std::ops::Range;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

/// The records, and the operations on their images up to a fixed size.
#[derive(Clone)]
pub(crate) struct PackedImages {
    records: Arc<PackedRecords>,
    /// A data set without rows that tracks the schema.
    columns: Dataset,
    max_item: Option<Bytes>,
    scans: Arc<ImageScans>,
}

impl PackedImages {
    pub fn new(records: Arc<PackedRecords>, schema: Schema) -> PackedImages {
        PackedImages { records, columns: Dataset::from_fn(schema, 0, |_, _| Ok(())), max_item: None, scans: Arc::default() }
    }

    /// The files.
    pub fn name(&self) -> String {
        self.records.name()
    }

    /// The sizes of its images. Unpacks them to read their headers, unless that was done before.
    fn sizes(&self) -> Result<ItemSizes, DataError> {
        let scan = self.scan_images(&ScanOptions::default())?;
        Ok(ItemSizes { stated: self.max_item, scan })
    }

    /// Reads the headers of the images of all records that can be unpacked in the time. They are not a random sample.
    fn scan(&self, recipes: &[Option<DecodeRecipe>], cap: Bytes, name: &str, options: &ScanOptions) -> ImageScan {
        let start = Instant::now();
        let mut hash = Fingerprint::new();
        let known = self.records.identify(&mut hash).is_ok();
        let stored = options.cache.as_ref().filter(|_| known).map(|folder| StoredScan::new(folder, &self.name(), name, hash.bytes()));
        if let Some(scan) = stored.as_ref().and_then(StoredScan::load) {
            return scan;
        }
        let (mut scan, mut reader) = (ImageScan::of(u64::MAX), RecordReader::new(Arc::clone(&self.records)));
        reader.begin();
        while scan.scanned < options.files && start.elapsed() <= options.time {
            // Damaged records are bad rows, and have no image to decode.
            let read = reader.next();
            if let Ok(false) = read {
                scan.images = scan.scanned;
                break;
            }
            let Some(record) = read.ok().and_then(|_| reader.record().ok()) else { continue };
            for (column, recipe) in recipes.iter().enumerate() {
                let Some(recipe) = recipe else { continue };
                let encoded = self.records.image(record, column).ok();
                let bytes = encoded.and_then(|encoded| encoded_bytes(self.records.path(record.position), encoded, recipe));
                bytes.filter(|bytes| *bytes <= cap).into_iter().for_each(|bytes| scan.add(bytes));
            }
            scan.scanned += 1;
        }
        if let Some(stored) = stored {
            // Without it, the records are unpacked again.
            let _ = stored.save(&scan);
        }
        scan
    }

    /// Memory of each additional decoding thread.
    pub fn decoder_bytes(&self) -> Result<Bytes, DataError> {
        Ok(self.columns.recipe()?.maps.iter().filter_map(|map| Some(map.item.as_ref()?.kernel_bytes())).sum())
    }

    /// Opens the records, with one decoder per thread. Allocates what the plan counts; memory for decoding comes from
    /// the pool.
    pub fn open_shared(
        &self,
        budget: StreamBudget,
        threads: usize,
        meter: &Arc<Meter>,
    ) -> Result<(RecordReader, Vec<RecordDecoder>), DataError> {
        let (recipe, here) = (self.columns.recipe()?, budget.item_bytes(&self.sizes()?, cores()));
        let pool = Arc::new(DecodePool::new(here, Bytes::ZERO, threads, None));
        let cap = ItemCap { stated: self.sizes()?.cap(), here };
        let decoder = |_| RecordDecoder::new(&self.records, &recipe, cap, &pool, meter);
        Ok((RecordReader::new(Arc::clone(&self.records)), (0..threads).map(decoder).collect()))
    }
}

impl Stage for PackedImages {
    fn describe(&self) -> String {
        self.columns.stages.iter().fold(self.name(), |name, stage| format!("{name} → {}", stage.describe()))
    }

    fn rows(&self, _inputs: &[Dataset], _of: &dyn Fn(&Dataset) -> Option<u64>) -> Option<u64> {
        None
    }

    fn schema(&self, _inputs: &[Dataset]) -> Result<Schema, DataError> {
        self.columns.output_schema()
    }

    /// The operations on images are part of the description.
    fn identify(&self, hash: &mut dyn Hasher, ignores_errors: bool) -> Result<Option<String>, DataError> {
        self.records.identify(hash)?;
        if let Some(bytes) = self.max_item.filter(|_| ignores_errors) {
            hash.write(&bytes.0.to_le_bytes());
        }
        Ok(None)
    }

    fn holdings(&self, _inputs: &[Dataset], _row: Bytes, budget: StreamBudget) -> Result<Vec<Holding>, DataError> {
        let decode = budget.item_bytes(&self.sizes()?, cores());
        Ok(vec![
            Holding::here(format!("packed records (each ≤ {})", PackedRecords::LONGEST), PackedRecords::HELD),
            Holding::here(format!("decode (each ≤ {decode})"), decode + self.decoder_bytes()?),
        ])
    }

    fn open(&self, inputs: &Opening<'_>) -> Result<Box<dyn BlockIterator>, DataError> {
        let (reader, mut decoders) = self.open_shared(inputs.budget, 1, &Arc::default())?;
        let decoder = decoders.pop().expect("one was asked for");
        inputs.rows(DecodedRecords { reader, decoder })
    }

    fn with_op(&self, column: &str, op: &Arc<dyn Op>) -> Option<Arc<dyn Stage>> {
        Some(Arc::new(PackedImages { columns: self.columns.clone().map(column, [Arc::clone(op)]), ..self.clone() }))
    }

    fn with_max_item(&self, bytes: Bytes) -> Option<Arc<dyn Stage>> {
        Some(Arc::new(PackedImages { max_item: Some(bytes), ..self.clone() }))
    }

    fn scan_images(&self, options: &ScanOptions) -> Result<Option<Arc<ImageScan>>, DataError> {
        let recipes: Vec<Option<DecodeRecipe>> = self.columns.recipe()?.maps.iter().map(|map| map.item.clone()).collect();
        if recipes.iter().all(Option::is_none) {
            return Ok(None);
        }
        let cap = ItemSizes { stated: self.max_item, scan: None }.cap();
        let ways = recipes.iter().map(|recipe| recipe.as_ref().map(|recipe| scan_name(recipe, cap, &(0..0))));
        let name = format!("{:?}", ways.collect::<Vec<_>>());
        Ok(Some(self.scans.get_or_scan(&name, || self.scan(&recipes, cap, &name, options))))
    }

    fn random_op(&self) -> Option<(String, String)> {
        self.columns.stages.iter().find_map(|stage| stage.random_op())
    }

    fn decodes(&self) -> Option<Option<Bytes>> {
        Some(self.max_item)
    }
}

/// Threads that may decode at the same time.
fn cores() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// Decodes records to rows on one thread.
pub(crate) struct RecordDecoder {
    records: Arc<PackedRecords>,
    columns: Vec<RecordColumn>,
}

struct RecordColumn {
    /// The bytes of the column in its row.
    at: Range<usize>,
    /// Decodes its images, if it has any.
    kernel: Option<DecodeKernel>,
}

/// A row whose last image is not decoded yet; its record may be overwritten.
pub(crate) struct StartedRecord {
    image: StartedImage,
    column: usize,
    position: RecordPosition,
}

impl RecordDecoder {
    fn new(records: &Arc<PackedRecords>, recipe: &Recipe, cap: ItemCap, pool: &Arc<DecodePool>, meter: &Arc<Meter>) -> RecordDecoder {
        let mut at = 0;
        let columns = recipe.maps.iter().zip(recipe.schema.columns()).map(|(map, column)| {
            let start = at;
            at += column.row_bytes().get();
            let kernel = |item| DecodeKernel::new((Arc::clone(&recipe.source), 0), item, cap, Arc::clone(pool), Arc::clone(meter));
            RecordColumn { at: start..at, kernel: map.item.clone().map(kernel) }
        });
        RecordDecoder { records: Arc::clone(records), columns: columns.collect() }
    }

    pub fn set_epoch(&mut self, epoch: u64) {
        self.columns.iter_mut().filter_map(|column| column.kernel.as_mut()).for_each(|kernel| kernel.set_epoch(epoch));
    }

    /// Writes the record read last as a row, except for its last image, whose bytes are copied to the pool; the
    /// record is then no longer needed.
    pub fn start(&mut self, reader: &RecordReader, out: &mut [u8]) -> Result<Option<StartedRecord>, Fault> {
        let (records, record) = (Arc::clone(&self.records), reader.record()?);
        let position = record.position;
        let mut started = None;
        for column in 0..self.columns.len() {
            // A thread must not wait for pool memory while holding some, or it could deadlock.
            if self.columns[column].kernel.is_some()
                && let Some(before) = started.take()
            {
                self.finish(before, out)?;
            }
            let RecordColumn { at, kernel } = &self.columns[column];
            let Some(kernel) = kernel else {
                records.write(record, column, &mut out[at.clone()])?;
                continue;
            };
            let encoded = records.image(record, column)?;
            let image = kernel.start(records.path(position), encoded).map_err(|error| in_record(&records, position, error))?;
            started = Some(StartedRecord { image, column, position });
        }
        Ok(started)
    }

    /// Decodes the remaining image of a row.
    pub fn finish(&mut self, started: StartedRecord, out: &mut [u8]) -> Result<(), Fault> {
        let StartedRecord { image, column, position } = started;
        let RecordColumn { at, kernel } = &mut self.columns[column];
        let kernel = kernel.as_mut().expect("it started the image");
        let decoded = kernel.finish(position.row, self.records.path(position), image, &mut out[at.clone()]);
        decoded.map(|_| ()).map_err(|error| in_record(&self.records, position, error))
    }
}

/// The error of an image, located by its record instead of a file.
fn in_record(records: &PackedRecords, position: RecordPosition, error: DataError) -> Fault {
    Fault::row(error).with_error(|error| {
        if let DataError::Image { problem, .. } = error {
            return records.damaged(position, format!("its image cannot be decoded: {problem}"));
        }
        let text = error.to_string();
        let rest = text.strip_prefix(&records.path(position).display().to_string()).map_or(format!(": {text}"), str::to_string);
        records.damaged(position, format!("its image{rest}"))
    })
}

/// The records of one epoch as rows, decoded on one thread.
struct DecodedRecords {
    reader: RecordReader,
    decoder: RecordDecoder,
}

impl RowIterator for DecodedRecords {
    fn begin(&mut self, epoch: u64) -> Result<(), Fault> {
        self.reader.begin();
        self.decoder.set_epoch(epoch);
        Ok(())
    }

    fn row(&mut self, out: &mut [u8]) -> Result<bool, Fault> {
        if !self.reader.next()? {
            return Ok(false);
        }
        let started = self.decoder.start(&self.reader, out)?;
        started.map_or(Ok(()), |record| self.decoder.finish(record, out)).map(|()| true)
    }
}
