export default defineNuxtConfig({
  compatibilityDate: '2024-12-01',
  devtools: { enabled: false },
  future: { compatibilityVersion: 4 },
  telemetry: false,
})
